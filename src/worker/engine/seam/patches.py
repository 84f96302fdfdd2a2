"""The parts of foreign objects that the engine replaces, a row each.

A row says what is replaced, by what, and why. Most of them put the worker's part in its place, too;
the last four are applied in a way that the owner offers. ``tests/contract/test_vllm_replaced.py``
fails for a row whose part has moved, and for one that is needed no more.

The SDK's are in ``job_loop/sdk.py``, since the job loop does not know the engine, and in
``worker/process/processor.py``, since that one is needed before the job loop is imported.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

# The newest release of vLLM that the rows were checked with.
NEWEST = "0.32"


@dataclass(frozen=True)
class Patch:
    """A part of a foreign object that the engine replaces.

    Attributes:
        owner: the class or module that has the part, as "package.module:Class".
        name: the part's attribute.
        by: what takes its place, as "worker.module:function".
        why: what the owner does without the patch.
        issue: upstream's issue or pull request about that; empty if none is known.
        until: last release of vLLM that needs the patch; None if the newest one does.
    """

    owner: str
    name: str
    by: str
    why: str
    issue: str = ""
    until: str | None = None

    def replace(self, owner: Any, part: Any) -> Any:
        """Put a part in the place of an object's own, and return its own."""
        original = getattr(owner, self.name)
        setattr(owner, self.name, part)
        return original

    @contextlib.contextmanager
    def replaced(self, owner: Any, part: Any) -> Iterator[None]:
        """Put a part in the place of an object's own during a block."""
        original = self.replace(owner, part)
        try:
            yield
        finally:
            setattr(owner, self.name, original)

    def replace_imported(self, part: Any) -> None:
        """Replace a function in each module of vLLM that has it: they import it by its name."""
        original = getattr(resolve_name(self.owner), self.name)
        for name, module in [*sys.modules.items()]:
            if name.startswith("vllm.") and vars(module).get(self.name) is original:
                setattr(module, self.name, part)


GENERATE = Patch(
    owner="vllm.v1.engine.async_llm:AsyncLLM",
    name="generate",
    by="worker.engine.run.grammar.gate:Gate",
    why="The core compiles grammars for as long as it takes, and all requests wait for it.",
    issue="https://github.com/vllm-project/vllm/issues/54003",
)
ADD_REQUEST = Patch(
    owner="vllm.v1.engine.async_llm:AsyncLLM",
    name="add_request",
    by="worker.engine.run.requests.turns:Turns",
    why="The requests of a long list take every place, and a short one waits until one is free.",
    issue="https://github.com/vllm-project/vllm/issues/16969",
)
SUBMIT = Patch(
    owner="concurrent.futures:Executor",
    name="submit",
    by="worker.engine.run.requests.texts:keep_a_thread_free",
    why="Long texts take every thread of the renderer, and short ones wait for seconds.",
)
TO_MESSAGES = Patch(
    owner="vllm.entrypoints.anthropic.serving:AnthropicServingMessages",
    name="messages_full_converter",
    by="worker.engine.run.server:keep_what_was_written",
    why="It refuses a request whose model wrote a tool's input that is no JSON object.",
)
EXCEPTION_HANDLERS = Patch(
    owner="starlette.applications:Starlette",
    name="exception_handlers",
    by="worker.engine.run.server:Server",
    why="vLLM's handlers answer exceptions; the worker translates them as on the raw path.",
)
SANITIZE = Patch(
    owner="vllm.entrypoints.serve.exception_handling.utils",
    name="sanitize_message",
    by="worker.engine.run.requests.refusals:sanitized",
    why="Its regular expressions take minutes for a message that quotes a name of 40 KB.",
    issue="https://github.com/vllm-project/vllm/pull/52120",
)
INSPECT = Patch(
    owner="vllm.model_executor.models.registry",
    name="_run_in_subprocess",
    by="worker.engine.seam.inspection:forked",
    why="It starts an interpreter, which imports vLLM again: most of a first start.",
    issue="https://github.com/vllm-project/vllm/issues/19317",
)
PLATFORM = Patch(
    owner="vllm.platforms:current_platform",
    name="__class__",
    by="worker.engine.machine:as_on",
    why="vLLM configures an engine for this machine only, and plans are made for other GPUs.",
)
BATCH_DEFAULTS = Patch(
    owner="vllm.engine.arg_utils:EngineArgs",
    name="get_batch_defaults",
    by="worker.engine.cache_plan:batch_defaults",
    why="It depends on this machine's platform, and plans are made for other GPUs.",
)

# A filter of the log's handlers:
LOG = Patch(
    owner="logging:Handler",
    name="addFilter",
    by="worker.engine.run.requests.refusals:silence_refusals",
    why="vLLM logs refused requests with a traceback, and quotes messages and addresses.",
)
# Collectors are moved to another registry:
METRICS = Patch(
    owner="prometheus_client:REGISTRY",
    name="unregister",
    by="worker.engine.start.cores:take_metrics",
    why="An engine that starts removes the metrics of the others from the process's registry.",
    issue="https://github.com/vllm-project/vllm/pull/21257",
)
# A subclass, which vLLM imports by its name:
COMPILATION = Patch(
    owner="vllm.v1.worker.cpu_worker:CPUWorker",
    name="__init__",
    by="worker.engine.seam.cpu_worker:CPUWorker",
    why="It compiles functions of the sampler with ENFORCE_EAGER, too, when they are first used.",
)
SEEDS = Patch(
    owner="vllm.v1.worker.cpu_worker:CPUWorker",
    name="sample_tokens",
    by="worker.engine.seam.cpu_worker:CPUWorker",
    why="It turns a seeded generator back, which a CPU's can't, and the core dies.",
)

PATCHES = tuple(value for value in [*vars().values()] if isinstance(value, Patch))
