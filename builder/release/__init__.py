"""A release: its version, its image, its notes, its address (docs/releasing.md)."""
