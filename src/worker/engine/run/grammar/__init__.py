"""Trial compilation of structured outputs before the engine gets them, and a queue for slow ones.

The engine core compiles grammars without a time limit, in a few threads that all requests share. So
``gate`` stands in front of vLLM's client, which both paths use. It refuses a grammar that is too
long, and passes any other one that might be slow to ``trial``, which caches results and runs
``process``: a child that compiles a grammar in a fork, with limits of time and memory, and follows
it for some tokens. Only grammars that compile in acceptable time reach the core, and slow ones
reach it one at a time. ``schemas`` finds the tool and the property that a refusal names. The limits
are in ``worker.limits``.
"""
