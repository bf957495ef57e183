"""Triton kernels of a decode step over paged KV; each knows tensors only, no policy, no request."""
