"""Tests of seam/protocols.py against vLLM's classes, and of vLLM's internal state."""

import inspect
import re
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
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from worker.engine.seam import protocols
from worker.engine.start.cores import METRICS_PREFIX

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
