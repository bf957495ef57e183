"""Text to token ids and back: tokenizers, chat templates, incremental detokenizing, stop strings.

Never torch.
"""
