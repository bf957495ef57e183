"""The page at `/`: static files without a build step, and how they are read."""
