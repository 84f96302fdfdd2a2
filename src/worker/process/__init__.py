"""Resources of one process, independent of what it serves.

``startup`` measures the phases of its start, and keeps garbage collection and the SDK from slowing
them down. ``memory`` reads how much memory it may use, and estimates how much models need.
``concurrency`` derives how many jobs it takes from the slots of an engine. ``exits`` runs functions
before it exits, which send or write what is only in memory.
"""
