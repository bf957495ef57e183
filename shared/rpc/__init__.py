"""gRPC plumbing every role shares: options, channels, servers, health, interceptors, statuses."""
