"""Triton kernels over KV bytes; imported only where Triton is."""
