"""Streams of the same request in several forms: requests, readers of events, and checks."""
