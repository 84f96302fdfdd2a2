"""LLM Engine's completions: the form of its jobs as a route, whole and by events."""

import json
from typing import Any

import pytest
from support.engine.scripted import (
    ScriptedEngine,
    broken_stream,
    events_in,
    failure,
    tokens,
    yields_of,
)

from worker.engine import Delta
from worker.errors import EngineDead, RefusedByEngine
from worker.job import RawJob

SYNC = "/v1/llm/completions-sync?model_endpoint_name=org/tuned"
STREAM = "/v1/llm/completions-stream?model_endpoint_name=org/tuned"
# What its client reads in one line.
LONGEST_LINE = 500_000


def asking(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": {"prompt": "Hi", **body}}


def events_of(yields: list[str]) -> list[dict[str, Any]]:
    return [event for text in yields for event in events_in(text)]


async def job_of(route: str, **body: Any) -> RawJob:
    """Return the raw job that the engine gets."""
    with ScriptedEngine(*tokens("a")) as engine:
        await yields_of(engine, asking(route, **body))
    (job,) = engine.asked
    assert isinstance(job, RawJob)
    return job


async def test_an_answer_is_whole_and_counts_its_tokens() -> None:
    with ScriptedEngine(*tokens("a", "b", "c")) as engine:
        (answer,) = await yields_of(engine, asking(SYNC))
    output = {"text": "abc", "num_prompt_tokens": 3, "num_completion_tokens": 3}
    assert answer == {"request_id": "job-1", "output": output}


async def test_a_token_is_an_event_however_many_a_yield_holds() -> None:
    with ScriptedEngine(*tokens("a", "b", "c", "d", "e")) as engine:
        yields = await yields_of(engine, {**asking(STREAM), "max_batch_delay_ms": 0})
    assert [text.count("data: ") for text in yields] == [1, 3, 1]
    outputs = [event["output"] for event in events_of(yields)]
    assert "".join(output["text"] for output in outputs) == "abcde"
    assert [output["num_completion_tokens"] for output in outputs] == [1, 2, 3, 4, 5]
    assert [output["finished"] for output in outputs] == [False] * 4 + [True]
    assert ["num_prompt_tokens" in output for output in outputs] == [False] * 4 + [True]


async def test_each_event_has_the_log_probability_of_its_token() -> None:
    script = [
        Delta(0, text, 1, 3, logprobs=[{"token": text, "logprob": -number}])
        for number, text in enumerate("abcd")
    ]
    with ScriptedEngine(*script, Delta(0, "", 0, 3, finish_reason="stop")) as engine:
        payload = {**asking(STREAM, return_token_log_probs=True), "max_batch_size": 50}
        yields = await yields_of(engine, payload)
    found = [event["output"]["token"] for event in events_of(yields)]
    wanted = [{"token": text, "log_prob": -number} for number, text in enumerate("abcd")]
    assert found == [*wanted, None]
    assert len(yields) < len(found)


async def test_decoded_events_are_a_list_where_the_operator_wants_them() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        ((event,),) = await yields_of(engine, asking(STREAM), RAW_OPENAI_OUTPUT="0")
    assert event["output"]["text"] == "a"


async def test_no_line_is_longer_than_the_client_reads() -> None:
    with ScriptedEngine(*tokens("a", "é" * 700_000)) as engine:
        yields = await yields_of(engine, asking(STREAM))
    assert max(len(line) for text in yields for line in text.encode().split(b"\n")) < LONGEST_LINE
    events = events_of(yields)
    assert "".join(event["output"]["text"] for event in events) == "a" + "é" * 700_000
    assert events[-1]["output"]["num_completion_tokens"] == 2


async def test_a_stream_that_breaks_ends_with_an_event_that_says_so() -> None:
    with ScriptedEngine(*tokens("a", finish=None), EngineDead()) as engine:
        yields, error = broken_stream(await yields_of(engine, asking(STREAM)))
    first, last = events_of(yields)
    assert first["output"]["text"] == "a"
    assert last.keys() == {"request_id", "error"}
    assert last["error"]["status_code"] == error["code"] == 503
    assert last["error"]["content"]["error"] == error["message"]
    assert last["error"]["content"]["timestamp"]


@pytest.mark.parametrize("route", [SYNC, STREAM])
async def test_a_refusal_before_the_first_token_fails_the_job_alone(route: str) -> None:
    with ScriptedEngine(RefusedByEngine("no such model", status=404)) as engine:
        (only,) = await yields_of(engine, asking(route))
    assert failure([only])["code"] == 404


@pytest.mark.parametrize("route", [SYNC, STREAM])
async def test_the_model_is_in_the_query_and_nulls_count_as_absent(route: str) -> None:
    sampled = dict.fromkeys(["stop_sequences", "top_k", "guided_json", "skip_special_tokens"])
    job = await job_of(route, max_new_tokens=7, temperature=0.0, **sampled)
    assert (job.model, job.prompt, job.stream) == ("org/tuned", "Hi", route == STREAM)
    assert job.sampling_params.vllm == {"max_tokens": 7, "temperature": 0.0}


async def test_a_null_in_a_schema_is_the_callers() -> None:
    schema = {"type": "object", "properties": {"a": {"const": None}}}
    job = await job_of(SYNC, guided_json=schema)
    assert json.loads(json.dumps(job.sampling_params.vllm))["structured_outputs"]["json"] == schema


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"presence_penalty": -1.0}, "presence_penalty"),
        ({"max_new_token": 5}, "did you mean 'max_new_tokens'?"),
        ({"guided_choice": ["a"], "guided_regex": "b"}, "one of guided_choice, guided_regex"),
        ({"prompt": None}, "either a prompt or prompts"),
        ({"prompt": None, "prompts": ["a"]}, "prompt"),
        ({"prompt": 5}, "prompt"),
    ],
)
async def test_what_the_form_has_not_is_refused(body: dict[str, Any], message: str) -> None:
    with ScriptedEngine() as engine:
        error = failure(await yields_of(engine, asking(SYNC, **body)))
    assert error["code"] == 400
    assert message in error["message"]
    assert engine.asked == []


async def test_a_completion_takes_a_slot_and_begins_again_with_the_next_engine() -> None:
    with ScriptedEngine(EngineDead()) as engine:
        engine.next_script = tuple(tokens("again"))
        (answer,) = await yields_of(engine, asking(SYNC))
    assert answer["output"]["text"] == "again"
    assert engine.waited == ["job-1"]
