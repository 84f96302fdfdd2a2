"""Parts of vLLM's objects declared in worker/engine/protocols.py, checked against its classes."""

import inspect
import re
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion import serving
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import BaseRenderer
from vllm.tokenizers import TokenizerLike
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestState

from worker.engine.seam import protocols

CLASSES: dict[Any, type] = {
    protocols.Client: AsyncLLM,
    protocols.CompletionOutput: CompletionOutput,
    protocols.Logprob: Logprob,
    protocols.LoRARequest: LoRARequest,
    protocols.Models: OpenAIServingModels,
    protocols.Renderer: BaseRenderer,
    protocols.RequestMetadata: serving.RequestResponseMetadata,
    protocols.RequestOutput: RequestOutput,
    protocols.RequestState: RequestState,
    protocols.Tokenizer: TokenizerLike,
    protocols.UsageInfo: serving.UsageInfo,
}


def attributes(class_: type) -> set[str]:
    """Return what a class declares, and what its methods assign to ``self``."""
    bases = [base for base in class_.__mro__ if base.__module__.startswith("vllm")]
    declared = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return declared.union(
        *(re.findall(r"\bself\.(\w+)\b[^=\n]* = ", inspect.getsource(base)) for base in bases)
    )


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda protocol: protocol.__name__)
def test_vllms_classes_have_what_the_worker_uses(protocol: type) -> None:
    theirs = CLASSES[protocol]
    ours = {**inspect.get_annotations(protocol), **vars(protocol)}
    names = {name for name in ours if not name.startswith("_")}
    assert names
    assert names <= attributes(theirs)
    for name in names:
        if inspect.isfunction(ours[name]):
            parameters = inspect.signature(getattr(theirs, name)).parameters.keys()
            assert inspect.signature(ours[name]).parameters.keys() <= parameters, name
