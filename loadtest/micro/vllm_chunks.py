"""Lets a running vLLM engine read prompts in other chunks; vLLM adds this class to its worker.

Its longest chunk is fixed when it starts, and a start takes a minute. Its scheduler looks at
`long_prefill_token_threshold` anew each step, though: most tokens of one prompt in a step. The
worker of one GPU lives in the scheduler's process and holds the same settings.
"""

from typing import Any


class ChunkSwitch:
    """Methods that `LLM.collective_rpc` calls by name."""

    vllm_config: Any

    def tandem_set_chunk(self, tokens: int) -> int:
        """Most tokens of a prompt in one step, 0 for all that fit; returns what holds now."""
        self.vllm_config.scheduler_config.long_prefill_token_threshold = tokens
        return int(self.vllm_config.scheduler_config.long_prefill_token_threshold)
