"""Name to factory. Who is alive belongs to `shared.discovery`; tables live beside their members."""
