"""API keys: what a key is, the file that lists them, and the ring that checks callers."""
