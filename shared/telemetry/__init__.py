"""What operators see: metrics, logs and the admin port; no gRPC, no torch, no prompt text."""
