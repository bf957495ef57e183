"""Load on a running server: who asks what and when, and whether it was served in time."""
