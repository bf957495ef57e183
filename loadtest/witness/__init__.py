"""Our load suite beside somebody else's: the same requests at the same moments, by turns."""
