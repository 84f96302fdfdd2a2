"""All limits of a request: who refuses it, and when.

A request is refused only if it is wrong for its API, or if it would harm others. All else that
vLLM's own server accepts is accepted. The checks run in this order, each as early as it can:

1. ``bodies.check_size``, when an input arrives: its bytes, its depth and its number of values.
2. ``bodies.check_request``, before an engine is used, for requests of all forms: bodies of routes,
   lines of batches, raw jobs and the items of lists. Keys that are the operator's, the places of
   media, the bounds of sampling parameters (``parameters``), and the work that they multiply to
   (``work``).
3. ``worker.engine.run.requests.limits``, with the objects of an engine: texts, whose limits depend
   on the context and the tokenizer (``texts``), bad words, and items of ``/v1/responses``.
4. ``worker.media.loader``: the media, while it fetches them.
5. ``worker.engine.run.grammar``, which tries each grammar before the core gets it; its limits are
   in ``work``.

``table`` lists all limits, each with the harm that it prevents, for the documentation.
"""
