"""Workers, endpoints and other commands as processes of their own."""
