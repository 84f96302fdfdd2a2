"""Request bodies of real clients: their recording, their storage, and variants of them."""
