"""The compute-bound half: reads prompts, prunes them with CLAA, pushes their KV."""
