"""Fine-tunes: from rows on the volume to an adapter that all workers serve by its name.

``trainer`` trains in a separate process. This package stores the request and the progress, starts
that process from the last checkpoint, and publishes its adapter.
"""
