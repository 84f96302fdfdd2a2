"""Clients of other makers, and our own proxy, as their users start them."""
