"""What `LLM` takes, and what it refuses before anything is sent."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from unit.client.llm.conftest import Call, Echo

from llm_worker_client import LLM, SamplingParams
from llm_worker_client.llm import sampling
from llm_worker_client.llm.parts import MOST_BYTES, parts_of
from llm_worker_client.llm.prompts import items_of, prompts_of

GENERATE = """prompts sampling_params prompt_token_ids use_tqdm lora_request
    prompt_adapter_request guided_options_request""".split()
CHAT = """messages sampling_params use_tqdm lora_request chat_template
    add_generation_prompt""".split()


def made(**arguments: Any) -> LLM:
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
def test_what_would_be_another_engine_is_refused_with_what_to_deploy(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made(**arguments)


def test_what_only_the_machine_would_feel_has_no_effect_but_a_warning() -> None:
    # The defaults ask for nothing.
    made(dtype="auto", tokenizer=None, trust_remote_code=False, seed=0, swap_space=4)
    with pytest.warns(UserWarning, match="tensor_parallel_size has no effect"):
        made(tensor_parallel_size=2)


def test_the_endpoint_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_x")
    with pytest.raises(ValueError, match="RUNPOD_ENDPOINT_ID"):
        LLM()
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "e")
    LLM().close()


# Prompts


@pytest.mark.parametrize(
    ("given", "asked"),
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
def test_prompts_are_texts_ids_or_dicts(given: Any, asked: list[Any]) -> None:
    assert [prompt for prompt, _ in prompts_of(given)] == asked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", None], "prompt 1: a text"),
        (["a", []], "prompt 1: a text"),
        ([["a"]], "prompt 0: a text"),
        ([[1, True]], "prompt 0: a text"),
        ({}, "prompt 0: a text"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "prompt 0: multi_modal_data.*chat"),
    ],
)
def test_what_is_no_prompt_is_named_by_its_place(given: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        prompts_of(given)


async def test_prompts_can_come_as_ids_as_older_code_has_them(
    ask_llm: Call, echo_llm: Echo
) -> None:
    outputs = await ask_llm(prompt_token_ids=[[1], [2]])
    assert [output.prompt_token_ids for output in outputs] == [[1], [2]]
    assert echo_llm.given[0]["prompts"] == [[1], [2]]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"sampling_params": [None]}, "sampling_params: 1 of them for 2 prompts"),
        ({"lora_request": ["x"] * 3}, "lora_request: 3 of them for 2 prompts"),
        ({"lora_request": 5}, "lora_request: a LoRARequest"),
        ({"sampling_params": 5}, "sampling_params: SamplingParams or a dict"),
        ({"sampling_params": {"stop": {1}}}, "sampling_params: .* can't be sent"),
        ({"prompts": None}, "prompts, or prompt_token_ids"),
    ],
)
async def test_nothing_is_sent_where_something_is_wrong(
    ask_llm: Call, echo_llm: Echo, named: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        await ask_llm(**{"prompts": ["a", "b"], **named})
    assert echo_llm.given == []


def test_a_template_is_the_endpoints() -> None:
    with pytest.raises(ValueError, match="CUSTOM_CHAT_TEMPLATE"):
        made().chat([{"role": "user", "content": "a"}], chat_template="{{ x }}")


# Sampling parameters


def test_they_are_those_of_the_raw_form() -> None:
    page = (ROOT / "docs" / "reference" / "jobs.md").read_text()
    table = page.split("### Sampling parameters")[1].split("### Bounds")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # Objects that hold names of the table, which the text below it tells of.
    holders = {"guided_decoding", "guided_options_request"}
    assert documented | holders == sampling.NAMES


HELD = SimpleNamespace(json={"type": "object"}, regex=None, disable_fallback=False)
OTHER = SimpleNamespace(max_tokens=16, stop=[], structured_outputs=HELD, _eos=1)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (SamplingParams(max_tokens=3, stop=["a"]), {"max_tokens": 3, "stop": ["a"]}),
        (None, {}),
        ({"max_tokens": None, "n": 2}, {"n": 2}),
        (OTHER, {"max_tokens": 16, "structured_outputs": {"json": {"type": "object"}}}),
    ],
)
def test_only_what_is_set_is_sent(given: Any, sent: dict[str, Any]) -> None:
    assert sampling.plain(given) == sent


def test_a_parameter_of_another_object_that_can_not_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sampling_params\.extra_args"):
        sampling.plain(SimpleNamespace(extra_args={"a": 1}))


def test_what_texts_are_held_to_joins_the_parameters() -> None:
    guided = SimpleNamespace(guided_choice=["a"], guided_json=None)
    asked = sampling.plain({"n": 1}, guided)
    assert asked == {"n": 1, "guided_options_request": {"guided_choice": ["a"]}}
    with pytest.raises(ValueError, match="beside them"):
        sampling.plain({"guided_options_request": {}}, guided)


# Jobs


@pytest.mark.parametrize(
    ("asked", "params", "sizes"),
    [
        # Few prompts stay together, many are shared, and there is an end to what one job holds.
        (["a"] * 50, None, [50]),
        (["a"] * 800, None, [100] * 8),
        (["a"] * 10_000, None, [500] * 20),
        # Bytes, values, token ids and results.
        (["a" * (MOST_BYTES // 2 - 100)] * 4, None, [2, 2]),
        ([[{"role": "user", "content": ["x"] * 30_000}]] * 4, None, [2, 2]),
        ([[1] * 500_000] * 4, None, [2, 2]),
        (["a"] * 4, {"max_tokens": 200_000}, [2, 2]),
        (["a"] * 4, {"max_tokens": 2_900, "logprobs": 18}, [2, 2]),
        # One that is too large alone is sent as it is.
        (["a" * 2 * MOST_BYTES, "a"], None, [1, 1]),
    ],
    ids=range(9),
)
def test_jobs_are_as_large_as_they_may_be(asked: list[Any], params: Any, sizes: list[int]) -> None:
    items = items_of([(one, None) for one in asked], params, None)
    assert [len(part.indexes) for part in parts_of(items, 8)] == sizes
