"""Trial compilation of structured outputs before the engine gets them, and a queue for slow ones.

The engine core compiles grammars without a time limit, in a few threads that all requests share. So
a separate process compiles each grammar first (``trial``, which runs ``process``). Only grammars
that compile in acceptable time reach the core, and slow ones reach it one at a time (``gate``).
"""
