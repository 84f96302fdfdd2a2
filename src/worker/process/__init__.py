"""Resources of one process: memory, garbage collection, concurrent jobs, phases of its startup."""
