"""The decode loop: reservations, intake of KV caches, scheduling, steps; no gRPC, no wire."""
