"""KV book-keeping both services share: page maths, page pool, landing slab; no torch, no network."""
