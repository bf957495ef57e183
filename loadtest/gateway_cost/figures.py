"""The arithmetic of the figures: pure functions of what was measured."""
