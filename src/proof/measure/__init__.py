"""Measures sides: programs that answer the same requests with the same engine.

``sides`` starts one as a process: the worker with a local platform in front of it, or vLLM's own
server. ``loads`` sends it requests, by callers in this process or in several, records when the
tokens of the answers arrive, and computes the figures of a load. ``processes`` starts and ends
everything, and knows the CPU time and the memory of a side. ``comparison`` gives the sides their
turns, takes the medians of the rounds, stores them in a file, and prints them as a table with the
worker's ratio to vLLM's server. The proof of a machine uses all of it, and so do the benchmarks.
"""
