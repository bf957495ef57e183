"""One decoder for every family, its weights, profiles and sampling; no service policy, no HTTP."""
