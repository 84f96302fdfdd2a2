"""The sides of batch.py: separate processes that print their measurements."""
