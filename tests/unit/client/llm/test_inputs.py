"""Arguments that `LLM` accepts, and those that it refuses before it sends anything."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from unit.client.llm.conftest import Call, Echo

from llm_worker_client import LLM, SamplingParams
from llm_worker_client.llm.inputs import PARAMETER_NAMES, create_items, parse_prompts, to_job_params
from llm_worker_client.llm.lists import MAX_BYTES, split_items

GENERATE = """prompts sampling_params prompt_token_ids use_tqdm lora_request
    prompt_adapter_request guided_options_request""".split()
CHAT = """messages sampling_params use_tqdm lora_request chat_template
    add_generation_prompt""".split()


def create_llm(**arguments: Any) -> LLM:
    return LLM("e", api_key="rpa_x", base_url="http://127.0.0.1:9", **arguments)


@pytest.mark.parametrize(("method", "names"), [(LLM.generate, GENERATE), (LLM.chat, CHAT)])
def test_calls_have_the_documented_arguments_in_their_order(method: Any, names: list[str]) -> None:
    assert [*inspect.signature(method).parameters][1 : len(names) + 1] == names


# The constructor


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "half"}, ValueError, "dtype: .*Deploy it with DTYPE=half"),
        ({"quantization": "x"}, ValueError, "quantization: .*Deploy it with QUANTIZATION=x"),
        ({"max_model_len": 5}, ValueError, "max_model_len: .*Deploy it with MAX_MODEL_LEN=5"),
        ({"max_model_length": 5}, TypeError, "did you mean MAX_MODEL_LEN"),
    ],
)
def test_an_argument_of_the_engine_is_refused_with_the_setting_to_deploy(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_llm(**arguments)


def test_an_argument_about_the_hardware_only_causes_a_warning() -> None:
    # The defaults cause no warning.
    create_llm(dtype="auto", tokenizer=None, trust_remote_code=False, seed=0, swap_space=4)
    with pytest.warns(UserWarning, match="tensor_parallel_size has no effect"):
        create_llm(tensor_parallel_size=2)


def test_the_endpoint_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_x")
    with pytest.raises(ValueError, match="RUNPOD_ENDPOINT_ID"):
        LLM()
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "e")
    LLM().close()


# Prompts


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        ({"prompt": "a"}, ["a"]),
        ({"prompt_token_ids": [1]}, [[1]]),
        (["a", [1], {"prompt": "b", "multi_modal_data": None}], ["a", [1], "b"]),
        ([], []),
    ],
)
def test_prompts_are_strings_token_ids_or_dicts(prompts: Any, expected: list[Any]) -> None:
    assert [prompt for prompt, _ in parse_prompts(prompts)] == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["a", None], "prompt 1: a text"),
        (["a", []], "prompt 1: a text"),
        ([["a"]], "prompt 0: a text"),
        ([[1, True]], "prompt 0: a text"),
        ({}, "prompt 0: a text"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "prompt 0: multi_modal_data.*chat"),
    ],
)
def test_an_invalid_prompt_is_named_by_its_index(prompts: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        parse_prompts(prompts)


async def test_prompts_can_be_token_ids_in_the_argument_of_older_code(
    ask_llm: Call, echo_llm: Echo
) -> None:
    outputs = await ask_llm(prompt_token_ids=[[1], [2]])
    assert [output.prompt_token_ids for output in outputs] == [[1], [2]]
    assert echo_llm.inputs[0]["prompts"] == [[1], [2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling_params": [None]}, "sampling_params: 1 of them for 2 prompts"),
        ({"lora_request": ["x"] * 3}, "lora_request: 3 of them for 2 prompts"),
        ({"lora_request": 5}, "lora_request: a LoRARequest"),
        ({"sampling_params": 5}, "sampling_params: SamplingParams or a dict"),
        ({"sampling_params": {"stop": {1}}}, "sampling_params: .* can't be sent"),
        ({"prompts": None}, "prompts, or prompt_token_ids"),
    ],
)
async def test_nothing_is_sent_if_an_argument_is_invalid(
    ask_llm: Call, echo_llm: Echo, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        await ask_llm(**{"prompts": ["a", "b"], **arguments})
    assert echo_llm.inputs == []


def test_a_chat_template_is_refused_with_the_setting_to_deploy() -> None:
    with pytest.raises(ValueError, match="CUSTOM_CHAT_TEMPLATE"):
        create_llm().chat([{"role": "user", "content": "a"}], chat_template="{{ x }}")


# Sampling parameters


def test_the_parameters_are_those_of_the_raw_form() -> None:
    page = (ROOT / "docs" / "reference" / "jobs.md").read_text()
    table = page.split("### Sampling parameters")[1].split("\n##")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # Objects that contain parameters of the table; the text below the table describes them.
    holders = {"guided_decoding", "guided_options_request"}
    assert documented | holders == PARAMETER_NAMES


STRUCTURED = SimpleNamespace(json={"type": "object"}, regex=None, disable_fallback=False)
OTHER = SimpleNamespace(max_tokens=16, stop=[], structured_outputs=STRUCTURED, _eos=1)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(max_tokens=3, stop=["a"]), {"max_tokens": 3, "stop": ["a"]}),
        (None, {}),
        ({"max_tokens": None, "n": 2}, {"n": 2}),
        (OTHER, {"max_tokens": 16, "structured_outputs": {"json": {"type": "object"}}}),
    ],
)
def test_only_parameters_that_are_set_are_sent(params: Any, expected: dict[str, Any]) -> None:
    assert to_job_params(params) == expected


def test_a_parameter_of_another_object_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sampling_params\.extra_args"):
        to_job_params(SimpleNamespace(extra_args={"a": 1}))


def test_guided_options_become_part_of_the_parameters() -> None:
    guided = SimpleNamespace(guided_choice=["a"], guided_json=None)
    params = to_job_params({"n": 1}, guided)
    assert params == {"n": 1, "guided_options_request": {"guided_choice": ["a"]}}
    with pytest.raises(ValueError, match="an argument as well"):
        to_job_params({"guided_options_request": {}}, guided)


# Jobs


@pytest.mark.parametrize(
    ("prompts", "params", "sizes"),
    [
        # Few prompts share one job; more are divided evenly, with up to 500 per job.
        (["a"] * 50, None, [50]),
        (["a"] * 800, None, [100] * 8),
        (["a"] * 10_000, None, [500] * 20),
        # Limits on bytes, values, token ids and results.
        (["a" * (MAX_BYTES // 2 - 100)] * 4, None, [2, 2]),
        ([[{"role": "user", "content": ["x"] * 30_000}]] * 4, None, [2, 2]),
        ([[1] * 500_000] * 4, None, [2, 2]),
        (["a"] * 4, {"max_tokens": 200_000}, [2, 2]),
        (["a"] * 4, {"max_tokens": 2_900, "logprobs": 18}, [2, 2]),
        # A prompt beyond the limit gets its own job.
        (["a" * 2 * MAX_BYTES, "a"], None, [1, 1]),
    ],
    ids=range(9),
)
def test_jobs_are_as_large_as_the_limits_allow(
    prompts: list[Any], params: Any, sizes: list[int]
) -> None:
    items = create_items([(one, None) for one in prompts], params, None)
    assert [len(part.indexes) for part in split_items(items, 8)] == sizes
