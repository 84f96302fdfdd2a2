"""Measures the worker on this machine, with vLLM's own server on the same engine for comparison.

The command ``python -m proof.machine`` makes or finds a model, and adapters and an embedder for it
(``random_model``, in a process of its own). ``plan`` is the table of what follows: sessions, each a
start of a side and its ``steps`` on it. ``run`` performs them with ``proof.measure``, prints a line
for each, and records a step that fails instead of ending. ``result`` has the figures and failures:
as a file in JSON, and as a page with tables, which names the machine and the versions of all
software (``system``). All files are in a temporary folder, and all processes end, also after
Ctrl-C.
"""
