"""Which prefill and decode workers go together, beside the order that a balancer gives them."""
