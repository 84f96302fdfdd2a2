"""`LLM` of the client against vLLM's own classes, which scripts were written for."""

import dataclasses
import inspect
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import StructuredOutputsParams

from llm_worker_client.llm import outputs, sampling
from llm_worker_client.llm.prompts import items_of

# What the raw form has not.
NOT_SENT = {"extra_args", "prompt_logprob_start", "prompt_logprob_token_ids"}


def test_every_parameter_is_sent_left_out_or_refused_by_name() -> None:
    fields = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    assert fields - sampling.NAMES - sampling.INSIDE == NOT_SENT


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {"max_tokens": 16}),
        ({"temperature": 0, "max_tokens": 5}, {"temperature": 0, "max_tokens": 5}),
        ({"stop": "a"}, {"stop": ["a"], "max_tokens": 16}),
        (
            {"n": 2, "seed": 3, "top_p": 0.5, "logprobs": 1},
            {"n": 2, "seed": 3, "top_p": 0.5, "logprobs": 1, "max_tokens": 16},
        ),
        (
            {"structured_outputs": StructuredOutputsParams(choice=["a"])},
            {"structured_outputs": {"choice": ["a"]}, "max_tokens": 16},
        ),
        ({"logit_bias": {5: 1.0}}, {"logit_bias": {5: 1.0}, "max_tokens": 16}),
    ],
)
def test_vllms_parameters_are_sent_as_far_as_they_are_set(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    found = sampling.plain(SamplingParams(**given))
    # vLLM sets them itself where it is greedy, and where log probabilities of a prompt are asked.
    assert {name: value for name, value in found.items() if value is not False} == sent


def test_of_vllms_adapter_the_name_is_sent() -> None:
    (item,) = items_of([("a", None)], None, LoRARequest("x", 1, "/adapters/x"))
    assert item.adapter == "x"


@pytest.mark.parametrize(
    ("ours", "vllms", "more"),
    [
        (outputs.RequestOutput, RequestOutput, {"num_prompt_tokens"}),
        (outputs.CompletionOutput, CompletionOutput, set()),
        (outputs.Logprob, Logprob, set()),
    ],
)
def test_results_have_vllms_names(ours: Any, vllms: Any, more: set[str]) -> None:
    names = {field.name for field in dataclasses.fields(ours)}
    assert names - {*inspect.signature(vllms.__init__).parameters} == more
