"""A running engine: what happens between a request and vLLM, and what keeps vLLM running.

``inprocess`` has the engine as the rest of the worker sees it, and the model of a worker that only
trains. It builds all that depends on a core, and builds it again for each new core. Requests enter
vLLM in two ways: through vLLM's own server, called in this process (``server``, which
``corrections`` mend), and from ``generation``, which answers raw jobs with vLLM's client, by the
parameters of ``sampling``. On both ways ``requests`` limits, queues and charges them, ``grammar``
tries what constrains their outputs, and ``adapters`` loads the LoRA that they name. ``core`` is one
core with its processes, and ``healing`` replaces it after a death, a hang or a ``suspension``.
"""
