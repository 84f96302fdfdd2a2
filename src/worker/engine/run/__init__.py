"""A running engine: requests, generation, adapters, and what keeps it answering."""
