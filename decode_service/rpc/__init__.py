"""The network edge of the decode service: protobuf in, engine calls, protobuf out; no torch."""
