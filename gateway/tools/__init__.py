"""Tool calls: how model families write them, grammars that enforce it, and reading them back."""
