"""Recovery of an engine: detects that a core has died or hangs, and starts a new one."""
