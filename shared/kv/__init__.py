"""KV book-keeping of both services: page maths, page pool, landing slab; no torch, no network."""
