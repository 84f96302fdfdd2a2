"""Resources of one process, independent of what it serves.

``lifetime`` measures the phases of its start, keeps garbage collection and the SDK from slowing
them down, and runs functions before the exit, which send or write what is only in memory.
``memory`` reads how much memory it may use, and estimates how much models need. ``concurrency``
derives how many jobs it takes from the slots of an engine.
"""
