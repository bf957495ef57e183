"""HTTP endpoints: parse, call the pipeline, answer."""
