"""Third-party clients and our own proxy, as their users start them."""
