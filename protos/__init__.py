"""The wire contract: .proto files and the stubs generated beside them."""
