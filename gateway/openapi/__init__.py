"""The document at /openapi.json: what the REST API takes and gives, from the bodies it checks."""
