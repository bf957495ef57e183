"""Triton kernels of a prompt's pass; each knows tensors only, no ranking method, no request."""
