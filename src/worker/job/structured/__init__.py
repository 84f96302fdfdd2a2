"""Structured outputs: how callers spell what an answer must match, and what of it is too much.

Every rule is stated once, for all routes: ``spelling`` reads the names, ``bounds`` looks through
whatever a request holds, ``repetitions`` reads regular expressions and grammars.
"""
