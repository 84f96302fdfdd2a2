"""The HTTP routes of the emulator, its request log and its webhooks."""
