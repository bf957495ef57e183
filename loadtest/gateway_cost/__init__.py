"""What the gateway costs: simulated workers, a minimal relay to compare with, and a load client."""
