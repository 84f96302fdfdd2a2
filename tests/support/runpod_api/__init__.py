"""The platform's REST API, version 2, as far as its published document says how it answers."""
