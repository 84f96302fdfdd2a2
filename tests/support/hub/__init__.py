"""A hub on loopback, model repositories and caches for it, and workers that download from it."""
