"""KV bytes in a device's memory: buffers, sums and which kind a worker takes; imports torch."""
