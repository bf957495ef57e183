"""How settings are filled from flags, environment, file and defaults; owners keep the dataclasses."""
