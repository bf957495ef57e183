"""A served pair from outside: what each method costs and saves at a client, beside the engine."""
