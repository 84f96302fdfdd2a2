"""Limits of grammars: the schemas, regular expressions and grammars that constrain an answer.

Only those that the engine compiles have these limits: ``response_format``, structured outputs, and
the schemas of tools that are ``strict``, required or named. Other tools are text for the template.
``worker.engine.run.grammar`` tries each grammar before the engine gets it.
"""

# Maximum characters of a grammar. Compiling takes up to 300 bytes of memory for each.
MAX_CHARACTERS = 500_000

# Maximum seconds of CPU time to compile a grammar; and on machines with at most
# ``SINGLE_THREAD_CPUS``, where the engine core compiles in a single thread and all others wait.
MAX_COMPILE_S = 30.0
SINGLE_THREAD_CPUS, SINGLE_THREAD_COMPILE_S = 2, 2.0
# The same to parse one, which vLLM repeats later on the worker's event loop.
MAX_PARSE_S = 0.5
# Maximum seconds of CPU time for one token, which delays all requests in the step; and for one
# token of each choice, on average.
MAX_TOKEN_S = 0.1
MAX_CHOICES_TOKEN_S = 0.05
# The same on average of the last tokens, if tokens take ever longer.
MAX_GROWING_TOKEN_S = 0.01
# Bytes of memory to compile one.
MAX_MEMORY_BYTES = 2 << 30
