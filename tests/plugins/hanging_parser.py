"""A parser's plugin that never comes back from C, with the interpreter's lock."""

import ctypes

ctypes.PyDLL(None).pause()
