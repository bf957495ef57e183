"""The form of answers: JSON schemas into grammars, and what of them is refused before any work."""
