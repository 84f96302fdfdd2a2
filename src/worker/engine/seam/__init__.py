"""The interface to vLLM: all that a new release may change.

``locations`` has the modules of vLLM's names, ``protocols`` types for the used parts of its
objects, and ``patches`` the replaced parts, each with its reason. ``translation`` makes errors of
the worker from vLLM's exceptions, and ``body_errors`` for bodies of the wrong shape. ``imports``
shortens the imports of a start. ``cpu_worker`` is a corrected version of vLLM's worker for CPUs,
which only the core imports.
"""
