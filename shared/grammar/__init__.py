"""What an answer may be made of: grammars compiled for a tokenizer, and one answer's place in them.

Never torch.
"""
