"""A running engine: requests, generation, adapters, and recovery from crashes and hangs."""
