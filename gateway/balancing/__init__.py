"""Choice among live workers: one policy a file, all with one interface."""
