"""What a key may use in any minute: counted in Redis for all gateways, or here for this one."""
