"""Measuring the system: load from outside over HTTP and gRPC, and benchmarks of one engine."""
