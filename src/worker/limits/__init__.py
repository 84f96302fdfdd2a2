"""All limits of a request: who refuses it, and when.

A request is refused only if it is wrong for its API, or if it would harm others. All else that
vLLM's own server accepts is accepted. From its arrival on, a request passes these checks, each as
early as it can be made:

1. The text as it arrives: its bytes over HTTP by ``serve.bodies``, the count of values in a job by
   ``job_loop.parsing``. Then ``inputs.check_size``, by ``dialects.parse_input``: the bytes, the
   depth and the count of values.
2. ``worker.job``, the class of the input: its keys and their types.
3. ``worker.dialects.table``: the route and the method. The keys of a body are checked by the route,
   those of routes of vLLM's server by ``worker.dialects.openai.forward``.
4. ``inputs.check_request``, before an engine is used, for requests of all forms: bodies of routes
   and lines of batches (by ``forward``), raw jobs and the items of lists (by
   ``routes.generation``). Keys that are the operator's, the places of media, the bounds of sampling
   parameters (``parameters``), and the work that they multiply to (``work``).
5. The sampling parameters: those of raw jobs by ``worker.engine.run.sampling``, with vLLM's own
   classes; on the OpenAI path, by ``forward`` if vLLM lacks them, else by vLLM's server (9).
6. ``worker.engine.run.requests.limits``, with the objects of an engine: texts, whose limits depend
   on the context and the tokenizer (``texts``), bad words, and items of ``/v1/responses``.
7. ``worker.media.loader``: the media, while it fetches them.
8. ``worker.engine.run.grammar.gate``, which tries each grammar of xgrammar, in a process that has
   limits of time and memory (``work``), before the core gets it.
9. vLLM itself, whose errors ``worker.engine.seam.translation`` and ``forward`` translate.

``table`` lists all limits, each with the harm that it prevents, for the documentation.
"""
