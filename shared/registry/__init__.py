"""Name to factory; who is alive belongs to `shared.discovery`, the tables of names beside their members."""
