"""Questions with known answers: needles, RULER's synthetic tasks, LongBench files, and scoring.

Built with a model's own tokenizer and chat template, never with torch; the same seed gives the same
tokens.
"""
