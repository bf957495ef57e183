"""How KV bytes move between workers: one file per transport beside the interface; no page maths."""
