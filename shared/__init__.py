"""Rooms that at least two services use; each room's docstring says what belongs in it."""
