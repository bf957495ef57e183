"""Settings: frozen dataclasses filled from flags, environment, file and defaults; the dataclasses live by their owners."""
