"""The `tandem` command and what runs the roles; imports every other package, is imported by none."""
