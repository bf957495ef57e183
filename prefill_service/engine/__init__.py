"""The prompt loop: queue, compute thread, deliveries, held KV; knows neither gRPC nor protobuf."""
