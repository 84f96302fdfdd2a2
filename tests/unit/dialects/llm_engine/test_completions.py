"""LLM Engine's completions, as jobs and by its routes: whole, by events, and lists of them."""

from typing import Any

import pytest
from support.engine.answers import answered, detailed
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


# As jobs:

BOTH = Delta(0, "ab", 2, 3, "length", None, [{"token": text, "logprob": -1} for text in "ab"])


@pytest.mark.parametrize("logged", [False, True])
async def test_an_answer_and_each_of_a_list_have_log_probabilities_if_they_are_asked_for(
    logged: bool,
) -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "return_token_log_probs": logged}
    output: dict[str, Any] = {"text": "ab", "num_prompt_tokens": 3, "num_completion_tokens": 2}
    if logged:
        output["tokens"] = [{"token": text, "log_prob": -1} for text in "ab"]
    assert await detailed(payload, BOTH) == [{"request_id": "job-1", "output": output}]
    payload |= {"prompt": None, "prompts": ["Hi", 7, "Ho"]}
    ((first, wrong, last),) = [chunk["outputs"] for chunk in await detailed(payload, BOTH)]
    assert (first, last) == (output, output)
    assert (wrong["error"]["code"], wrong["error"]["param"]) == (400, "prompt")
    streamed = await detailed({**payload, "stream": True}, BOTH)
    results = {chunk["index"]: chunk["result"] for chunk in streamed}
    assert (results[0], results[2]) == (output, output)


async def test_each_yield_of_a_stream_is_one_event() -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "stream": True, "max_batch_delay_ms": 0}
    yields = await answered(payload, *tokens(" a", " b", "", " ç", "😀", " end"))
    end = {"finished": True, "num_prompt_tokens": 3}
    assert [chunk["output"] for chunk in yields] == [
        {"text": " a", "num_completion_tokens": 1, "finished": False},
        {"text": " b ç", "num_completion_tokens": 4, "finished": False},
        {"text": "😀 end", "num_completion_tokens": 6, **end},
    ]


# Tokens with their log probabilities, and an end that comes alone.
LOGGED = [
    Delta(0, text, 1, 3, logprobs=[{"token": text, "id": 7, "logprob": -number}])
    for number, text in enumerate("abcde", 1)
]
LOGGED += [Delta(0, "", 0, 3, finish_reason="stop")]
OUTPUTS = [
    {
        **{"text": text, "finished": False, "num_completion_tokens": number},
        "token": {"token": text, "log_prob": -number},
    }
    for number, text in enumerate("abcde", 1)
]
OUTPUTS += [{"text": "", "finished": True, "num_completion_tokens": 5, "num_prompt_tokens": 3}]
OUTPUTS[-1]["token"] = None


async def test_with_log_probabilities_a_yield_is_one_token() -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "stream": True, "max_batch_size": 50}
    yields = await answered({**payload, "return_token_log_probs": True}, *LOGGED)
    assert [chunk["output"] for chunk in yields] == OUTPUTS


# By routes:


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
    engine.script = tuple(LOGGED)
    payload = {**asking(STREAM, return_token_log_probs=True), "max_batch_delay_ms": 0}
    yields = await yields_of(engine, payload)
    assert [text.count("data: ") for text in yields] == [1, 3, 2]
    assert outputs_of(yields) == OUTPUTS


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
