"""Patches: the parts of third-party objects that the engine replaces, one row each.

For most rows, the worker assigns the replacement to the part's attribute. The last four rows use an
extension point of the owner instead. ``tests/contract/test_vllm_replaced.py`` fails for a row whose
part has moved, and for a row that is no longer needed.

Patches of the RunPod SDK are in ``job_loop/sdk.py``, since the job loop does not depend on the
engine, and in ``worker/process/lifetime.py``, since that patch is needed before the job loop is
imported.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

# Newest release of vLLM that the patches were checked with.
NEWEST_RELEASE = "0.33"


@dataclass(frozen=True)
class Patch:
    """A part of a third-party object that the engine replaces."""

    owner: str  # class, module or other object that has the part, as "package.module:name"
    name: str  # the owner's attribute
    replacement: str  # the worker's, as "worker.module:function"
    reason: str  # the problem that the patch solves
    issue: str = ""  # URL of the upstream issue or pull request; empty if none is known
    # Last release of vLLM that needs the patch; None if the newest one does.
    last_release: str | None = None

    def replace(self, owner: Any, replacement: Any) -> Any:
        """Replace the part in an object, and return the original part."""
        original = getattr(owner, self.name)
        setattr(owner, self.name, replacement)
        return original

    @contextlib.contextmanager
    def replace_temporarily(self, owner: Any, replacement: Any) -> Iterator[None]:
        original = self.replace(owner, replacement)
        try:
            yield
        finally:
            setattr(owner, self.name, original)

    @property
    def original(self) -> Any:
        return getattr(resolve_name(self.owner), self.name)

    def replace_in_modules(self, replacement: Any) -> None:
        """Replace a function in each module of vLLM that has imported it by name."""
        original = self.original
        for name, module in [*sys.modules.items()]:
            if name.startswith("vllm.") and vars(module).get(self.name) is original:
                setattr(module, self.name, replacement)


GENERATE = Patch(
    owner="vllm.v1.engine.async_llm:AsyncLLM",
    name="generate",
    replacement="worker.engine.run.grammar.gate:GrammarGate",
    reason="The core compiles grammars for as long as it takes, and all requests wait for it.",
    issue="https://github.com/vllm-project/vllm/issues/54003",
)
ADD_REQUEST = Patch(
    owner="vllm.v1.engine.async_llm:AsyncLLM",
    name="add_request",
    replacement="worker.engine.run.requests.long_requests:LongRequestQueue",
    reason="The requests of a long list take every slot, and a short one waits for a free slot.",
    issue="https://github.com/vllm-project/vllm/issues/16969",
)
SEND_REQUEST = Patch(
    owner="vllm.v1.engine.core_client:AsyncMPClient",
    name="add_request_async",
    replacement="worker.engine.run.requests.long_requests:LongRequestQueue",
    reason="The choices of one request take every slot, and a short one waits for a free slot.",
)
COLLECTOR = Patch(
    owner="vllm.v1.engine.async_llm",
    name="RequestOutputCollector",
    replacement="worker.engine.run.requests.due_outputs:make_collector",
    reason="It wakes the reader of a stream for each token, and events of a token take most time.",
)
REQUEST_STATES = Patch(
    owner="vllm.v1.engine.output_processor:OutputProcessor",
    name="request_states",
    replacement="worker.engine.run.requests.gpu_time:ChargedRequests",
    reason="vLLM has no statistics of a request that is aborted, and none of a share of the GPU.",
    issue="https://github.com/vllm-project/vllm/issues/36383",
)
SUBMIT = Patch(
    owner="concurrent.futures:Executor",
    name="submit",
    replacement="worker.engine.run.requests.long_requests:reserve_thread_for_short_texts",
    reason="Long texts take every thread of the renderer, and short ones wait for seconds.",
)
TOKEN_TEXTS = Patch(
    owner="vllm.tokenizers.detokenizer_utils",
    name="convert_ids_list_to_tokens",
    replacement="worker.engine.run.corrections:remember_token_texts",
    reason="It decodes all tokens with log probabilities in each step, and all requests wait.",
)
INCOMPLETE_TEXT = Patch(
    owner="vllm.v1.engine.logprobs:LogprobsProcessor",
    name="_correct_decoded_token",
    replacement="worker.engine.run.corrections:remember_token_texts",
    reason="It decodes tokens with a part of a character up to nine times, in each step.",
)
TO_MESSAGES = Patch(
    owner="vllm.entrypoints.anthropic.serving:AnthropicServingMessages",
    name="messages_full_converter",
    replacement="worker.engine.run.corrections:keep_invalid_tool_input",
    reason="It refuses a request whose model wrote a tool's input that is no JSON object.",
)
CREATE_ERROR = Patch(
    owner="vllm.entrypoints.anthropic.api_router",
    name="create_error_response",
    replacement="worker.engine.run.corrections:raise_errors_of_messages",
    reason="It responds to exceptions; the worker translates them as on the raw path.",
)
PARSE_DELTA = Patch(
    owner="vllm.parser.abstract_parser:DelegatingParser",
    name="parse_delta",
    replacement="worker.engine.run.corrections:send_withheld_text",
    reason="A stream with tools loses its end if that may be, and is not, the begin of a call.",
)
OUTPUT_LIMIT = Patch(
    owner="vllm.entrypoints.openai.completion.serving:OpenAIServingCompletion",
    name="override_max_tokens",
    replacement="worker.engine.run.server:VllmServer",
    reason="Setting it by an option would also replace the model's default number of tokens.",
)
EXCEPTION_HANDLERS = Patch(
    owner="starlette.applications:Starlette",
    name="exception_handlers",
    replacement="worker.engine.run.server:VllmServer",
    reason="vLLM's handlers respond to exceptions; the worker translates them as on the raw path.",
)
SANITIZE = Patch(
    owner="vllm.entrypoints.serve.exception_handling.utils",
    name="sanitize_message",
    replacement="worker.engine.run.corrections:sanitize_message",
    reason="Its regular expressions take minutes for a message that quotes a name of 40 KB.",
    issue="https://github.com/vllm-project/vllm/pull/52120",
)
INSPECT = Patch(
    owner="vllm.model_executor.models.registry",
    name="_run_in_subprocess",
    replacement="worker.engine.seam.imports:call_in_fork",
    reason="It starts an interpreter, which imports vLLM again: most of a first startup.",
    issue="https://github.com/vllm-project/vllm/issues/19317",
)
IMPORT_STRUCTURE = Patch(
    owner="transformers.utils.import_utils",
    name="create_import_structure_from_path",
    replacement="worker.engine.seam.imports:cache_import_structure",
    reason="Its cache has 128 entries for 500 models, so transformers parses its sources twice.",
)
PLATFORM = Patch(
    owner="vllm.platforms:current_platform",
    name="__class__",
    replacement="worker.engine.machine:simulate_gpu",
    reason="vLLM configures an engine for this machine only, and plans are made for other GPUs.",
)
BATCH_DEFAULTS = Patch(
    owner="vllm.engine.arg_utils:EngineArgs",
    name="get_batch_defaults",
    replacement="worker.engine.cache_plan:gpu_batch_defaults",
    reason="It depends on this machine's platform, and plans are made for other GPUs.",
)
LORA_INFO = Patch(
    owner="vllm.v1.metrics.loggers:PrometheusStatLogger",
    name="gauge_lora_info",
    replacement="worker.engine.start.cores:remove_unlimited_metrics",
    reason="It has a series for each order of the adapters in use, and none is ever removed.",
)

# This replacement calls ``addFilter`` of vLLM's log handlers, and doesn't replace it.
LOG = Patch(
    owner="logging:Handler",
    name="addFilter",
    replacement="worker.engine.run.corrections:silence_refusals",
    reason="vLLM logs refused requests with a traceback, and quotes messages and addresses.",
)
# This replacement moves the collectors to another registry, by calling ``unregister``.
METRICS = Patch(
    owner="prometheus_client:REGISTRY",
    name="unregister",
    replacement="worker.engine.start.cores:move_vllm_metrics",
    reason="An engine that starts removes the metrics of the others from the process's registry.",
    issue="https://github.com/vllm-project/vllm/pull/21257",
)
# The replacements below are methods of a subclass, which vLLM imports by its name.
COMPILATION = Patch(
    owner="vllm.v1.worker.cpu_worker:CPUWorker",
    name="__init__",
    replacement="worker.engine.seam.cpu_worker:CPUWorker",
    reason="It compiles functions of the sampler on first use, even with ENFORCE_EAGER.",
)
SEEDS = Patch(
    owner="vllm.v1.worker.cpu_worker:CPUWorker",
    name="sample_tokens",
    replacement="worker.engine.seam.cpu_worker:CPUWorker",
    reason="It rewinds seeded generators, which a CPU's don't support, and the core dies.",
)

PATCHES = tuple(value for value in [*vars().values()] if isinstance(value, Patch))
