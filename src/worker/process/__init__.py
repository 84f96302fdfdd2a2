"""What one process has and takes: memory, garbage, jobs at once, the phases of its start."""
