"""What keeps an engine answering: its death or hang is noticed, and a new core takes over."""
