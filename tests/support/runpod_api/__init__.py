"""The platform's REST API, version 2, according to its published document."""
