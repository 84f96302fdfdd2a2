"""Tests of seam/protocols.py against vLLM's classes, of its internal state, and of its metrics."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import vllm.entrypoints
from prometheus_client import REGISTRY, Counter
from vllm.entrypoints.openai.chat_completion import serving
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import BaseRenderer
from vllm.tokenizers import TokenizerLike
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import BackgroundResources, MPClient
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.metrics import loggers
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from worker.engine.seam import protocols
from worker.engine.start.cores import METRICS_PREFIX

# Classes of metrics, and vLLM's names for them.
METRIC_CLASSES = {"Counter", "Gauge", "Histogram", "_counter_cls", "_gauge_cls", "_histogram_cls"}
# Names of the argument with the labels that most of vLLM's metrics have.
ENGINE_ARGUMENTS = {"labelnames", "self._labelnames"}


class MetricsSource:
    """Finds metrics and their labels in source code: vLLM creates many of its metrics rarely."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
        self._nodes = sorted(nodes, key=lambda node: node.lineno)

    def metrics(self) -> Iterator[tuple[str, set[str]]]:
        """Yield each metric's name, or else the module's, and its labels."""
        self._values: dict[str, ast.expr] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._values |= {ast.unparse(target): node.value for target in targets}
            if not isinstance(node, ast.Call):
                continue
            arguments = {keyword.arg: keyword.value for keyword in node.keywords}
            if ast.unparse(node.func).rpartition(".")[2] in METRIC_CLASSES:
                names = ("name", "documentation", "labelnames")
                arguments |= dict(zip(names, node.args, strict=False))
            if "labelnames" in arguments:
                yield self._constant(arguments.get("name")), self._labels(arguments["labelnames"])

    def _constant(self, expression: ast.expr | None) -> str:
        if expression is not None:
            expression = self._values.get(ast.unparse(expression), expression)
        return str(expression.value) if isinstance(expression, ast.Constant) else self._name

    def _labels(self, expression: ast.expr) -> set[str]:
        """Return the labels in an expression; one that is no constant by its expression."""
        match expression:
            case ast.Constant(value=str(label)):
                return {label}
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return set().union(*map(self._labels, parts))
            case ast.BinOp(left=left, right=right):
                return self._labels(left) | self._labels(right)
        text = ast.unparse(expression)
        if text in ENGINE_ARGUMENTS:
            return set()
        return self._labels(self._values[text]) if text in self._values else {text}


CLASSES: dict[Any, type] = {
    protocols.Client: AsyncLLM,
    protocols.CoreConnection: MPClient,
    protocols.CompletionOutput: CompletionOutput,
    protocols.Logprob: Logprob,
    protocols.LoRARequest: LoRARequest,
    protocols.Models: OpenAIServingModels,
    protocols.OutputProcessor: OutputProcessor,
    protocols.ProcessManager: CoreEngineProcManager,
    protocols.Renderer: BaseRenderer,
    protocols.RequestMetadata: serving.RequestResponseMetadata,
    protocols.RequestOutput: RequestOutput,
    protocols.RequestState: RequestState,
    protocols.ConnectionResources: BackgroundResources,
    protocols.Tokenizer: TokenizerLike,
    protocols.UsageInfo: serving.UsageInfo,
}


def attributes(class_: type) -> set[str]:
    """Return the names that a class declares or that its methods assign to ``self``."""
    bases = [base for base in class_.__mro__ if base.__module__.startswith("vllm")]
    declared = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return declared.union(
        *(re.findall(r"\bself\.(\w+)\b[^=\n]* = ", inspect.getsource(base)) for base in bases)
    )


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda protocol: protocol.__name__)
def test_vllms_classes_implement_the_protocols_of_the_worker(protocol: type) -> None:
    theirs = CLASSES[protocol]
    ours = {**inspect.get_annotations(protocol), **vars(protocol)}
    names = {name for name in ours if not name.startswith("_")}
    assert names
    assert names <= attributes(theirs)
    for name in names:
        if inspect.isfunction(ours[name]):
            parameters = inspect.signature(getattr(theirs, name)).parameters.keys()
            assert inspect.signature(ours[name]).parameters.keys() <= parameters, name


def test_every_protocol_is_checked() -> None:
    declared = {
        value for value in vars(protocols).values() if Protocol in getattr(value, "__bases__", ())
    }
    assert declared == CLASSES.keys()


# Internal state of vLLM that no protocol declares. If it disappeared, nothing would raise an error.


@pytest.mark.parametrize(
    "name",
    [
        "anthropic_serving_messages",
        "online_renderer",
        "openai_serving_completion",
        "openai_serving_models",
        "request_metadata",
    ],
)
def test_vllm_sets_the_state_attributes_that_the_worker_reads(name: str) -> None:
    entrypoints = Path(vllm.entrypoints.__file__).parent
    assigned = f"state.{name} = "
    assert any(assigned in path.read_text() for path in entrypoints.rglob("*.py"))


def test_the_runner_records_which_sampled_tokens_it_discards() -> None:
    """Otherwise a seeded request with a chunked prompt kills a core on a CPU."""
    source = Path(inspect.getfile(GPUModelRunner)).read_text()
    assert "self.discard_request_mask.np[:num_reqs] = " in source
    assert "generators" in attributes(InputBatch)
    assert "input_batch" in attributes(GPUModelRunner)


def test_the_process_has_a_registry_of_its_metrics_that_vllm_also_reads() -> None:
    """Otherwise an engine that starts unregisters the metrics of other engines."""
    counter = Counter("vllm:read", "A counter.")
    try:
        assert counter in REGISTRY._collector_to_names
        assert counter._name.startswith(METRICS_PREFIX)
    finally:
        REGISTRY.unregister(counter)


def test_vllm_lists_the_objects_that_record_its_metrics() -> None:
    assert "stat_loggers" in attributes(loggers.StatLoggerManager)


# The labels of vLLM's metrics. Each combination of values is a series that no process ever forgets,
# and that each scrape and each push transfers. So no caller may choose the values.

# The name of the served model and the number of the core.
ENGINE_LABELS = {"model_name", "engine"}
# The worker removes this metric.
REMOVED = {"vllm:lora_requests_info"}
# Other labels of vLLM's metrics, by the metric, or by the module that computes its name. A row
# belongs here only if settings or constants of vLLM are the values of the label.
KNOWN_LABELS = {
    # The configuration of the cache, and of a place that blocks are offloaded to.
    "vllm:cache_config_info": {"metrics_info.keys()"},
    "vllm:simple_kv_offload_info": {"backend", "capacity_blocks", "lazy_offload", "page_cache"},
    "v1/kv_offload/tiering/spec.py": {"tier", "TIER_LABEL", "result"},
    "distributed/kv_transfer/kv_connector/v1/offloading/metrics.py": {
        "self._spec_cls.config_info_keys(extra_config)"
    },
    # Positions in a draft: NUM_SPECULATIVE_TOKENS.
    "vllm:spec_decode_num_accepted_tokens_per_pos": {"position"},
    # Reasons, results, sources and states, which are constants.
    "vllm:admission_rejections": {"reason"},
    "vllm:engine_sleep_state": {"sleep_state"},
    "vllm:num_requests_kv_fetch_by_stage": {"stage"},
    "vllm:num_requests_waiting_by_reason": {"reason"},
    "vllm:prompt_tokens_by_source": {"source"},
    "vllm:prompt_tokens_cached_by_source": {"source"},
    "vllm:request_success": {"finished_reason"},
    "vllm:simple_kv_offload_save_outcomes_total": {"outcome"},
    "vllm:tool_call_parser_invocations_total": {"mode", "outcome", "request_type"},
    "vllm:watermark_requests": {"status"},
    # Operations of connectors, and of routes that the worker does not serve.
    "vllm:kv_offload_size": {"transfer_type"},
    "vllm:kv_offload_total_bytes": {"transfer_type"},
    "vllm:kv_offload_total_time": {"transfer_type"},
    "vllm:mooncake_store_operation_bytes_total": {"operation", "status"},
    "vllm:mooncake_store_operation_failed_keys_total": {"operation", "status"},
    "vllm:mooncake_store_operation_keys_total": {"operation", "status"},
    "vllm:mooncake_store_operation_time_seconds": {"operation", "status"},
    "vllm:mooncake_store_operation_total": {"operation", "status"},
    "vllm:rl_weight_update_operation_duration_seconds": {"operation"},
    "vllm:rl_weight_update_operations_in_flight": {"operation"},
    "vllm:sleep_mode_operation_duration_seconds": {"operation"},
    "vllm:sleep_mode_operations_in_flight": {"operation"},
    "vllm:umbp_transfer_bytes_total": {"operation"},
    "vllm:umbp_transfer_completed_total": {"operation"},
    "vllm:umbp_transfer_failed_total": {"operation"},
    "vllm:umbp_transfer_submitted_total": {"operation"},
    "v1/kv_offload/tiering/kvcr/manager.py": {"operation", "resource", "result", "scope"},
}


def list_unknown_labels(source: str, module: str) -> list[str]:
    return [
        f"{metric} has the label {label}"
        for metric, labels in MetricsSource(source, module).metrics()
        for label in sorted(labels - ENGINE_LABELS - KNOWN_LABELS.get(metric, set()))
        if metric not in REMOVED
    ]


def test_callers_choose_no_value_of_a_label_of_vllms_metrics() -> None:
    package = Path(vllm.__file__).parent
    unknown = [
        line
        for path in package.rglob("*.py")
        if "labelnames" in (source := path.read_text()) or "prometheus" in source
        for line in list_unknown_labels(source, str(path.relative_to(package)))
    ]
    assert not unknown, (
        f"New in this vLLM: {'; '.join(unknown)}. Read where vLLM sets it. If its values depend on "
        "requests, remove the metric, as worker/engine/start/cores.py removes others. Otherwise "
        "add the label to KNOWN_LABELS."
    )


def test_the_metrics_of_the_installed_vllm_are_found() -> None:
    """Otherwise the test above would pass whatever labels there are."""
    found = dict(MetricsSource(inspect.getsource(loggers), "loggers.py").metrics())
    assert len(found) > 25
    assert found.keys() >= REMOVED
    assert found["vllm:request_success"] == {"finished_reason"}


def test_a_new_label_is_found_wherever_its_name_is_written() -> None:
    source = """
LABELS = ("adapter", *others)
self._name, self.label = "vllm:a", "engine"
self._name = "vllm:request_success"
self.label = "route"
Counter(self._name, "Doc.", ["model_name", "user", "finished_reason"])
prometheus_client.Gauge("vllm:b", "Doc.", labelnames=labelnames + [self.label])
self._histogram_cls(name=f"vllm:{x}", labelnames=LABELS)
self.label = "engine"
Metadata(labelnames=("key",))
"""
    assert list_unknown_labels(source, "module.py") == [
        "vllm:request_success has the label user",
        "vllm:b has the label route",
        "module.py has the label *others",
        "module.py has the label adapter",
        "module.py has the label key",
    ]
