"""Models, adapters and configurations that tests load."""
