"""A release: its version, its image, its notes. Needs nothing but Python (docs/releasing.md)."""
