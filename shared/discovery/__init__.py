"""Who is alive and where: capability cards, from fixed addresses or Redis; no gRPC, no torch."""
