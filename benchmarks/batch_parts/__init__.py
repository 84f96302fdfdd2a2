"""The sides of batch.py: processes of their own, which say what they measured."""
