"""Fine-tunes: from rows on the volume to an adapter that every worker serves by its name.

``trainer`` trains, in a process of its own. This package keeps what was asked and how far it is,
starts that process from wherever the last one was ended, and publishes its adapter.
"""
