"""What the last requests did, for operators: a bounded memory of them and its two endpoints."""
