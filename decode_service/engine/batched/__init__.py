"""A step of the whole batch by Triton kernels: tables as tensors, selection on the device."""
