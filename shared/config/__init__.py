"""How settings fill from flags, environment, file and defaults; owners keep the dataclasses."""
