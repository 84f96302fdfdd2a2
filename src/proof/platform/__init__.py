"""Proves the worker on RunPod Serverless, and compares the platform with the emulator.

The command ``python -m proof.platform`` asks before it creates anything, since the run costs money:
``plan`` has the endpoints that it needs, and estimates the costs. ``endpoints`` creates them, and
deletes them whatever fails; a later run finds those that are left by their names. ``run`` performs
the ``steps``, a table of the documented behaviour, the function that observes it, and the place in
the emulator that imitates it. The functions are in ``observations``; each uses a ``target``, the
endpoint with its requests and jobs. ``report`` compares the observed facts with those of the
emulator, which a test has recorded in emulator.json, and writes them as JSON and as a page.
"""
