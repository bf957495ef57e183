"""Finds where a model can be pruned and which layers read everything, and writes its profile."""
