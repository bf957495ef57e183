"""Pure conversions between `shared.types` and protobuf messages; the only room that knows both."""
