"""The memory-bound half: adopts KV caches, keeps them in pages and generates with DELTA."""
