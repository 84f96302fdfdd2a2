"""Code that the routes of all dialects share.

A row of the table of routes is a ``Route`` (``route``); ``vllm`` has the rows of vLLM's server. The
code of a route gets a ``RouteRequest`` with the worker's ``Resources``: engines, settings, files
and long work. The answer is an ``Answer`` (``answer``): the source of the pieces, and how yields
are made of them. ``generation`` makes the answers that the engine generates without vLLM's server,
to a prompt or to a list of prompts. ``conversations`` converts the messages in a body for vLLM's
server, and ``events`` splits its streams. ``models`` finds the models that callers name.
``long_work`` creates, cancels and passes on batches and fine-tunes, whose kinds are in ``kinds``.
"""
