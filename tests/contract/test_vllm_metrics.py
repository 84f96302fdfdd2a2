"""The labels of all metrics of vLLM: no caller chooses their values.

Each combination of values is a series that no process ever forgets, and that each scrape and each
push transfers. The metrics are read in vLLM's source, since many exist only with certain settings.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import vllm

from worker.engine.seam.patches import LORA_INFO

SOURCE = Path(vllm.__file__).parent
# Classes of metrics, and vLLM's names for them.
CLASSES = {"Counter", "Gauge", "Histogram", "_counter_cls", "_gauge_cls", "_histogram_cls"}
# The name of the served model and the number of the core, which most metrics have; and the names of
# the argument with these labels.
ENGINE_LABELS = {"model_name", "engine"}
ENGINE_ARGUMENTS = {"labelnames", "self._labelnames"}
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


class Module:
    """A module's source, in which metrics are read."""

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
            if ast.unparse(node.func).rpartition(".")[2] in CLASSES:
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


def list_unknown_labels(source: str, module: str, known: Mapping[str, set[str]]) -> list[str]:
    return [
        f"{metric} has the label {label}"
        for metric, labels in Module(source, module).metrics()
        for label in sorted(labels - ENGINE_LABELS - known.get(metric, set()))
        if metric not in REMOVED
    ]


def test_callers_choose_no_value_of_a_label_of_vllms_metrics() -> None:
    unknown = [
        line
        for path in SOURCE.rglob("*.py")
        if "labelnames" in (source := path.read_text()) or "prometheus" in source
        for line in list_unknown_labels(source, str(path.relative_to(SOURCE)), KNOWN_LABELS)
    ]
    assert not unknown, (
        f"New in this vLLM: {'; '.join(unknown)}. Read where vLLM sets it. If its values depend on "
        "requests, remove the metric, as worker/engine/start/cores.py removes others. Otherwise "
        "add the label to KNOWN_LABELS."
    )


def test_the_metrics_of_the_installed_vllm_are_found() -> None:
    """Otherwise the test above would pass whatever labels there are."""
    source = (SOURCE / "v1" / "metrics" / "loggers.py").read_text()
    found = dict(Module(source, "loggers.py").metrics())
    assert len(found) > 25
    assert found.keys() >= REMOVED
    assert LORA_INFO.name in source
    assert found["vllm:request_success"] == {"finished_reason"}


def test_a_new_label_is_found_wherever_its_name_is_written() -> None:
    source = """
LABELS = ("adapter", *others)
self._name = "vllm:a"
self.label = "route"
Counter(self._name, "Doc.", ["model_name", "user"])
prometheus_client.Gauge("vllm:b", "Doc.", labelnames=labelnames + [self.label])
self._histogram_cls(name=f"vllm:{x}", labelnames=LABELS)
self.label = "other"
Metadata(labelnames=("key",))
"""
    assert list_unknown_labels(source, "module.py", {"vllm:a": {"model_name"}}) == [
        "vllm:a has the label user",
        "vllm:b has the label route",
        "module.py has the label *others",
        "module.py has the label adapter",
        "module.py has the label key",
    ]
