"""The form of Scale's LLM Engine through the worker, up to what the SDK gets."""

from typing import Any

import pytest
from support.engine.answers import Details
from support.engine.scripted import ScriptedEngine, Step, failure, tokens, yields_of

from worker.engine import Delta
from worker.errors import EngineDead, RefusedByEngine
from worker.job import RawJob

EXACT = {"max_batch_delay_ms": 0}  # chunks of the formula's sizes, however slow the machine
TEXTS = [" a", " b", "", " ç", "😀", " end"]


def completion(**keys: Any) -> dict[str, Any]:
    return {"format": "llm_engine", "prompt": "Hi", **keys}


def position(text: str) -> dict[str, Any]:
    """Return the engine's log probabilities of a token; this form has only some of them."""
    chosen = {"token": text, "id": 7, "logprob": -0.5}
    return {**chosen, "top": [chosen]}


def log_probs(*texts: str) -> list[dict[str, Any]]:
    return [{"token": text, "log_prob": -0.5} for text in texts]


def one_by_one(*texts: str, end: int = 1) -> list[Step]:
    """Script tokens with their log probabilities; with ``end`` 0 a bare end follows them."""
    deltas: list[Step] = [
        Delta(
            0, text, 1, 3, "stop" if end and place == len(texts) else None, None, [position(text)]
        )
        for place, text in enumerate(texts, 1)
    ]
    return deltas if end else [*deltas, Delta(0, "", 0, 3, "stop")]


# Not streaming:


async def test_an_answer_is_one_yield_with_the_output() -> None:
    with ScriptedEngine(*tokens("Hel", "lo", "!")) as engine:
        yields = await yields_of(engine, completion())
    output = {"text": "Hello!", "num_prompt_tokens": 3, "num_completion_tokens": 3}
    assert yields == [{"request_id": "job-1", "output": output}]


async def test_log_probabilities_come_with_the_text() -> None:
    whole = Delta(0, "Hello", 2, 3, "length", None, [position("Hel"), position("lo")])
    with Details(whole) as engine:
        yields = await yields_of(engine, completion(return_token_log_probs=True))
    output = {
        "text": "Hello",
        "num_prompt_tokens": 3,
        "num_completion_tokens": 2,
        "tokens": log_probs("Hel", "lo"),
    }
    assert yields == [{"request_id": "job-1", "output": output}]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_gets_the_parameters_by_vllms_names(stream: bool) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, completion(stop_sequences=["b"], stream=stream))
    (asked,) = engine.asked
    assert isinstance(asked, RawJob)
    assert asked.streamed is stream
    assert asked.sampling_params.vllm == {"max_tokens": 20, "temperature": 0.2, "stop": ["b"]}


# Streaming:


async def test_each_yield_of_a_stream_is_one_event() -> None:
    with ScriptedEngine(*tokens(*TEXTS)) as engine:
        yields = await yields_of(engine, completion(stream=True, **EXACT))
    events = [
        {"text": " a", "finished": False, "num_completion_tokens": 1},
        {"text": " b ç", "finished": False, "num_completion_tokens": 4},
        {
            "text": "😀 end",
            "finished": True,
            "num_prompt_tokens": 3,
            "num_completion_tokens": 6,
        },
    ]
    assert yields == [{"request_id": "job-1", "output": event} for event in events]


async def test_an_end_that_comes_alone_is_one_event() -> None:
    script = [*tokens(*"abcd", finish=None), Delta(0, "", 0, 3, "stop", "###")]
    with ScriptedEngine(*script) as engine:
        yields = await yields_of(engine, completion(stream=True, **EXACT))
    outputs = [chunk["output"] for chunk in yields]
    assert [output["finished"] for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert ["num_prompt_tokens" in output for output in outputs] == [
        output["finished"] for output in outputs
    ]
    assert outputs[-1]["num_completion_tokens"] == 4
    assert "".join(output["text"] for output in outputs) == "abcd"


async def test_the_sizes_of_the_job_cut_a_stream_without_log_probabilities() -> None:
    with ScriptedEngine(*tokens(*"x" * 10)) as engine:
        keys = {"max_batch_size": 4, "min_batch_size": 4, **EXACT}
        yields = await yields_of(engine, completion(stream=True, **keys))
    assert [chunk["output"]["num_completion_tokens"] for chunk in yields] == [4, 8, 10]


async def test_with_log_probabilities_an_event_is_one_token() -> None:
    with Details(*one_by_one(*TEXTS)) as engine:
        payload = completion(stream=True, return_token_log_probs=True, max_batch_size=50)
        yields = await yields_of(engine, payload)
    assert {chunk["request_id"] for chunk in yields} == {"job-1"}
    outputs = [chunk["output"] for chunk in yields]
    assert [output["text"] for output in outputs] == TEXTS
    assert [output["token"] for output in outputs] == log_probs(*TEXTS)
    assert [output["num_completion_tokens"] for output in outputs] == [1, 2, 3, 4, 5, 6]
    assert [output["finished"] for output in outputs] == [False] * 5 + [True]
    assert [output.get("num_prompt_tokens") for output in outputs] == [None] * 5 + [3]
    assert not any("tokens" in output for output in outputs)


async def test_an_end_that_comes_alone_costs_no_token() -> None:
    with Details(*one_by_one(*TEXTS, end=0)) as engine:
        payload = completion(stream=True, return_token_log_probs=True)
        yields = await yields_of(engine, payload)
    outputs = [chunk["output"] for chunk in yields]
    assert [output["token"] for output in outputs if output["token"]] == log_probs(*TEXTS)
    assert [output["finished"] for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1]["num_completion_tokens"] == 6
    assert outputs[-1]["num_prompt_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_absent_unless_asked_for(stream: bool) -> None:
    with Details(*one_by_one("a")) as engine:
        (chunk,) = await yields_of(engine, completion(stream=stream))
    assert not {"token", "tokens"} & chunk["output"].keys()


# Batches:


async def test_a_batch_is_one_yield_with_the_outputs() -> None:
    with ScriptedEngine(*tokens("a", "b")) as engine:
        yields = await yields_of(engine, {"format": "llm_engine", "prompts": ["Hi", "Ho"]})
    output = {"text": "ab", "num_prompt_tokens": 3, "num_completion_tokens": 2}
    assert yields == [{"outputs": [output, output]}]


async def test_a_batch_has_the_log_probabilities_of_every_output() -> None:
    whole = Delta(0, "Hello", 2, 3, "stop", None, [position("Hel"), position("lo")])
    payload = {"format": "llm_engine", "prompts": ["Hi", "Ho"], "return_token_log_probs": True}
    with Details(whole) as engine:
        (chunk,) = await yields_of(engine, payload)
    assert [output["tokens"] for output in chunk["outputs"]] == [log_probs("Hel", "lo")] * 2


async def test_a_batch_that_is_streamed_yields_each_output_when_it_is_whole() -> None:
    payload = {"format": "llm_engine", "prompts": ["Hi", "Ho"], "stream": True}
    with ScriptedEngine(*tokens("a", "b")) as engine:
        yields = await yields_of(engine, payload)
    assert sorted(chunk["index"] for chunk in yields) == [0, 1]
    output = {"text": "ab", "num_prompt_tokens": 3, "num_completion_tokens": 2}
    assert [chunk["result"] for chunk in yields] == [output, output]


async def test_what_is_wrong_with_a_prompt_stands_in_its_place() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        (chunk,) = await yields_of(engine, {"format": "llm_engine", "prompts": [7, "Hi"]})
    wrong, right = chunk["outputs"]
    assert (wrong["error"]["code"], wrong["error"]["param"]) == (400, "prompt")
    assert right["text"] == "a"


# Failures:


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keys", [{"temperature": 2}, {"max_tokens": 5}, {"prompt": 7}])
async def test_what_is_wrong_fails_the_job_as_in_every_form(
    keys: dict[str, Any], stream: bool
) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        yields = await yields_of(engine, completion(stream=stream, **keys))
    assert len(yields) == 1
    error = failure(yields)
    assert (error["code"], [error["param"]]) == (400, list(keys))
    assert engine.asked == []


@pytest.mark.parametrize(
    ("error", "code"), [(RefusedByEngine("no", status=400), 400), (EngineDead(), 503)]
)
@pytest.mark.parametrize("logged", [False, True])
async def test_an_error_after_the_first_event_fails_the_job(
    error: Exception, code: int, logged: bool
) -> None:
    begun = one_by_one("a", "b", "c", end=0)[:-1]
    with Details(*begun, error) as engine:
        payload = completion(stream=True, return_token_log_probs=logged, **EXACT)
        yields = await yields_of(engine, payload)
    assert len(yields) > 1
    assert failure(yields)["code"] == code
    outputs = [chunk["output"] for chunk in yields[:-1]]
    assert "".join(output["text"] for output in outputs) == "abc"
    assert not any(output["finished"] for output in outputs)
