"""Calls to the workers; the only part of the gateway that sees their messages."""
