"""LLM Engine's completions: the form of its jobs as a route, whole and by events."""

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
from worker.errors import EngineDead
from worker.job import RawJob

SYNC = "/v1/llm/completions-sync?model_endpoint_name=org/tuned"
STREAM = "/v1/llm/completions-stream?model_endpoint_name=org/tuned"
# What its client reads in one line.
LONGEST_LINE = 500_000


def asking(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": {"prompt": "Hi", **body}}


def outputs_of(yields: list[str]) -> list[dict[str, Any]]:
    return [event["output"] for text in yields for event in events_in(text)]


# unit/app has the same form as a job.


@pytest.mark.parametrize("route", [SYNC, STREAM])
async def test_the_model_is_in_the_query_and_nulls_are_none(
    engine: ScriptedEngine, route: str
) -> None:
    engine.script = tuple(tokens("a"))
    nulls = dict.fromkeys(["stop_sequences", "top_k", "skip_special_tokens"])
    # A null in a schema is the caller's.
    schema = {"type": "object", "properties": {"a": {"const": None}}}
    body = {"max_new_tokens": 7, "temperature": 0.0, "guided_json": schema, **nulls}
    await yields_of(engine, asking(route, **body))
    (job,) = engine.asked
    assert isinstance(job, RawJob)
    assert (job.model, job.prompt, job.stream) == ("org/tuned", "Hi", route == STREAM)
    structured = {"structured_outputs": {"json": schema}}
    assert job.sampling_params.vllm == {"max_tokens": 7, "temperature": 0.0, **structured}


async def test_a_token_is_an_event_however_many_a_yield_holds(engine: ScriptedEngine) -> None:
    script = [
        Delta(0, text, 1, 3, logprobs=[{"token": text, "logprob": -number}])
        for number, text in enumerate("abcde", 1)
    ]
    engine.script = (*script, Delta(0, "", 0, 3, finish_reason="stop"))
    payload = {**asking(STREAM, return_token_log_probs=True), "max_batch_delay_ms": 0}
    yields = await yields_of(engine, payload)
    assert [text.count("data: ") for text in yields] == [1, 3, 2]
    *outputs, last = outputs_of(yields)
    assert outputs == [
        {
            **{"text": text, "finished": False, "num_completion_tokens": number},
            "token": {"token": text, "log_prob": -number},
        }
        for number, text in enumerate("abcde", 1)
    ]
    end = {"text": "", "finished": True, "num_completion_tokens": 5, "num_prompt_tokens": 3}
    assert last == {**end, "token": None}


async def test_decoded_events_are_a_list_if_the_operator_wants_them(engine: ScriptedEngine) -> None:
    engine.script = tuple(tokens("a"))
    ((event,),) = await yields_of(engine, asking(STREAM), RAW_OPENAI_OUTPUT="0")
    assert event["output"]["text"] == "a"


async def test_no_line_is_longer_than_the_client_reads(engine: ScriptedEngine) -> None:
    engine.script = tuple(tokens("a", "é" * 700_000))
    yields = await yields_of(engine, asking(STREAM))
    assert max(len(line) for text in yields for line in text.encode().split(b"\n")) < LONGEST_LINE
    outputs = outputs_of(yields)
    assert "".join(output["text"] for output in outputs) == "a" + "é" * 700_000
    assert outputs[-1]["num_completion_tokens"] == 2


async def test_a_stream_that_breaks_ends_with_an_event_that_says_so(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a", finish=None), EngineDead())
    (first, last), error = broken_stream(await yields_of(engine, asking(STREAM)))
    (event,) = events_in(last)
    content = event["error"]["content"]
    assert outputs_of([first])[0]["text"] == "a"
    assert event.keys() == {"request_id", "error"}
    assert event["error"]["status_code"] == error["code"] == 503
    assert (content["error"], content.keys()) == (error["message"], {"error", "timestamp"})


# One mistake of each kind: unit/job has the others of this form.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"max_new_token": 5}, "did you mean 'max_new_tokens'?"),
        ({"prompt": None, "prompts": ["a"]}, "prompt"),
    ],
)
async def test_what_it_has_not_is_refused(
    engine: ScriptedEngine, body: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, asking(SYNC, **body)))
    assert (error["code"], engine.asked) == (400, [])
    assert message in error["message"]
