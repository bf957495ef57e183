"""Request bodies: shapes, ranges, and what they mean for the pair."""
