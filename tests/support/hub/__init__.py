"""A hub on loopback, and repositories, caches and downloads of its models."""
