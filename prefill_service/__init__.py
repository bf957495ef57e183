"""The compute-bound half: reads a prompt once and ships the KV of the tokens that matter."""
