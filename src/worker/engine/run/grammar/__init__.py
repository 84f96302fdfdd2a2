"""Structured outputs before the engine has them: compiled elsewhere first, one slow one at a time.

The core compiles without a limit of time, in few threads that all requests share. So a process of
the worker's compiles first (``trial``, which runs ``process``), and only what that takes a bearable
time for reaches the core (``gate``).
"""
