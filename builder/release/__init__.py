"""A release: its version, its image, its notes. Needs only Python (docs/releasing.md)."""
