"""Which KV pages a decode layer reads: policies and their maths; no scheduling, no memory."""
