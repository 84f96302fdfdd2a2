"""Batches of Scale's LLM Engine, v1 and v2: its requests as lines, its results and jobs as views.

Nothing here runs a batch: a request becomes the lines of an input file (``lines``), the lines of
the outputs become one array (``rendering``), and a batch is told as a job (``views``).
"""
