"""The `tandem` command and what runs the roles; nothing imports it."""
