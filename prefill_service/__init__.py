"""prefill_service: the compute-bound half; reads prompts, prunes them with CLAA, pushes their KV."""
