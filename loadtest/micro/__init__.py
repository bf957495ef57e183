"""Benchmarks of one part in one process, arms alternating; these may import the engines."""
