"""A hub on loopback, model repositories and caches, and workers that download from the hub."""
