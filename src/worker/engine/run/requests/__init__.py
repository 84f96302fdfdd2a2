"""The code around the requests of both paths, where it needs vLLM's objects.

``limits`` calls the checks of ``worker.limits`` that need a tokenizer or one of vLLM's models, and
``media`` makes the loader that checks the media. ``long_requests`` lets a long request wait before
vLLM renders its texts, and again before the engine gets it, so that others pass. ``due_outputs``
holds the outputs of a stream until its next chunk is due. ``gpu_time`` charges each request for its
tokens and its share of the GPUs when it leaves the engine.
"""
