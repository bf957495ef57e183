"""Frozen values that cross room borders; standard library only, no behaviour beyond validation."""
