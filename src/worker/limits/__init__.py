"""What a request may hold before the engine has it."""
