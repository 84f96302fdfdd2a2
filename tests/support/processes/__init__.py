"""Workers, endpoints and other commands in separate processes."""
