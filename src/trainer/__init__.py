"""Trains a LoRA adapter in its own process, which serves no requests: ``python -m trainer``.

The worker starts it, and writes what it has to do: see ``worker.fine_tunes.spec``. ``__main__``
watches for SIGTERM before anything heavy is imported. An ``attempt`` copies the newest checkpoint
of all attempts, and checks the rows: a forked process without torch reads them (``rows``) and
writes them as tokens, as the engine would (``tokens``). Then the base model is loaded
(``loading``), and ``training`` runs transformers' ``Trainer`` on as many rows as fit into memory.
Its callbacks write events and checkpoints (``output``), from which another attempt can continue.
``interruptions`` has the reasons to end early. At the end, the attempt's outcome names the epoch
whose adapter is the best.
"""
