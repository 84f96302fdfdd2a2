"""LLM Engine's completions: their parameters, as jobs and by routes, streamed, and in lists."""

from typing import Any

import pytest
from support.engine.answers import run_detailed_job, run_job
from support.engine.scripted import (
    ScriptedEngine,
    events_in,
    failure,
    split_stream_error,
    tokens,
    yields_of,
)

from worker.dialects import parse_input
from worker.engine import Delta
from worker.errors import EngineDead
from worker.job import PromptListJob, RawJob

SYNC = "/v1/llm/completions-sync?model_endpoint_name=org/tuned"
STREAM = "/v1/llm/completions-stream?model_endpoint_name=org/tuned"
# Bytes of the longest line that LLM Engine's client reads.
LONGEST_LINE = 500_000


def make_payload(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": {"prompt": "Hi", **body}}


def outputs_of(yields: list[str]) -> list[dict[str, Any]]:
    return [event["output"] for text in yields for event in events_in(text)]


# Parameters:

DEFAULTS = {"max_tokens": 20, "temperature": 0.2}
# Parameters with vLLM's names, at the bounds of their ranges.
AS_IN_VLLM: list[dict[str, Any]] = [
    {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 2.0, "top_k": -1, "top_p": 1},
    {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": 0, "top_p": 0.001},
    {"include_stop_str_in_output": False, "skip_special_tokens": True},
]


def parse_completion(**keys: Any) -> RawJob:
    job = parse_input({"format": "llm_engine", "prompt": "Hi", **keys})
    assert isinstance(job, RawJob)
    return job


def parse_list(**keys: Any) -> PromptListJob:
    job = parse_input({"format": "llm_engine", **keys})
    assert isinstance(job, PromptListJob)
    return job


def test_a_prompt_alone_gets_llm_engines_defaults() -> None:
    raw_job = parse_input({"prompt": "Hi", "format": "raw", "sampling_params": DEFAULTS})
    assert parse_completion() == raw_job.model_copy(update={"format": "llm_engine"})


@pytest.mark.parametrize(
    ("sent", "vllm"),
    [
        ({"max_new_tokens": 7}, {"max_tokens": 7}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"guided_json": {}}, {"structured_outputs": {"json": {}}}),
        ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}),
        ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
        ({"guided_grammar": "a"}, {"structured_outputs": {"grammar": "a"}}),
        ({"return_token_log_probs": True}, {"logprobs": 0}),
        ({"return_token_log_probs": False}, {}),
        *((params, params) for params in AS_IN_VLLM),
    ],
    ids=str,
)
def test_every_parameter_is_translated_into_vllms(
    sent: dict[str, Any], vllm: dict[str, Any]
) -> None:
    assert parse_completion(**sent).sampling_params.vllm_params == DEFAULTS | vllm


def test_nulls_and_the_clients_own_keys_have_no_effect() -> None:
    nulls = dict.fromkeys(("max_new_tokens", "temperature", "stop_sequences", "top_k", "zzz"))
    assert parse_completion(timeout="of any type", request_headers=7, **nulls) == parse_completion()


def test_the_model_the_stream_and_its_chunk_sizes_are_set_on_the_job() -> None:
    keys = {"model": "demo", "stream": True, "max_batch_size": 5, "max_batch_delay_ms": 0}
    assert parse_completion(**keys) == parse_completion().model_copy(update=keys)


def test_the_items_of_a_list_equal_single_completions() -> None:
    keys = {"max_new_tokens": 5, "stop_sequences": ["a"], "return_token_log_probs": True}
    job = parse_list(prompts=["Hi", "Ho"], stream=True, use_tqdm=True, **keys)
    assert job.items == (parse_completion(**keys), parse_completion(**keys, prompt="Ho"))
    assert (job.stream, job.use_tqdm) == (True, True)
    assert not parse_list(prompts=["Hi"]).stream


# As jobs:

BOTH = Delta(0, "ab", 2, 3, "length", None, [{"token": text, "logprob": -1} for text in "ab"])


@pytest.mark.parametrize("has_logprobs", [False, True])
async def test_a_completion_and_the_items_of_a_list_have_log_probabilities_on_request(
    has_logprobs: bool,
) -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "return_token_log_probs": has_logprobs}
    output: dict[str, Any] = {"text": "ab", "num_prompt_tokens": 3, "num_completion_tokens": 2}
    if has_logprobs:
        output["tokens"] = [{"token": text, "log_prob": -1} for text in "ab"]
    assert await run_detailed_job(payload, BOTH) == [{"request_id": "job-1", "output": output}]
    payload |= {"prompt": None, "prompts": ["Hi", 7, "Ho"]}
    ((first, wrong, last),) = [chunk["outputs"] for chunk in await run_detailed_job(payload, BOTH)]
    assert (first, last) == (output, output)
    assert (wrong["error"]["code"], wrong["error"]["param"]) == (400, "prompt")
    chunks = await run_detailed_job({**payload, "stream": True}, BOTH)
    results = {chunk["index"]: chunk["result"] for chunk in chunks}
    assert (results[0], results[2]) == (output, output)


async def test_each_yield_of_a_stream_is_one_event() -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "stream": True, "max_batch_delay_ms": 0}
    yields = await run_job(payload, *tokens(" a", " b", "", " ç", "😀", " end"))
    end = {"finished": True, "num_prompt_tokens": 3}
    assert [chunk["output"] for chunk in yields] == [
        {"text": " a", "num_completion_tokens": 1, "finished": False},
        {"text": " b ç", "num_completion_tokens": 4, "finished": False},
        {"text": "😀 end", "num_completion_tokens": 6, **end},
    ]


# Tokens with their log probabilities, and an end without a token.
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


async def test_with_log_probabilities_each_yield_has_one_token() -> None:
    payload = {"format": "llm_engine", "prompt": "Hi", "stream": True, "max_batch_size": 50}
    yields = await run_job({**payload, "return_token_log_probs": True}, *LOGGED)
    assert [chunk["output"] for chunk in yields] == OUTPUTS


# By routes:


@pytest.mark.parametrize("route", [SYNC, STREAM])
async def test_the_model_is_read_from_the_query_and_nulls_are_ignored(
    engine: ScriptedEngine, route: str
) -> None:
    engine.script = tuple(tokens("a"))
    nulls = dict.fromkeys(["stop_sequences", "top_k", "skip_special_tokens"])
    # A null in a schema is a value.
    schema = {"type": "object", "properties": {"a": {"const": None}}}
    body = {"max_new_tokens": 7, "temperature": 0.0, "guided_json": schema, **nulls}
    await yields_of(engine, make_payload(route, **body))
    (job,) = engine.requests
    assert isinstance(job, RawJob)
    assert (job.model, job.prompt, job.stream) == ("org/tuned", "Hi", route == STREAM)
    structured = {"structured_outputs": {"json": schema}}
    assert job.sampling_params.vllm_params == {"max_tokens": 7, "temperature": 0.0, **structured}


async def test_each_token_is_one_event_even_if_a_yield_has_several(engine: ScriptedEngine) -> None:
    engine.script = tuple(LOGGED)
    payload = {**make_payload(STREAM, return_token_log_probs=True), "max_batch_delay_ms": 0}
    yields = await yields_of(engine, payload)
    assert [text.count("data: ") for text in yields] == [1, 3, 2]
    assert outputs_of(yields) == OUTPUTS


async def test_an_operator_can_choose_lists_of_decoded_events(engine: ScriptedEngine) -> None:
    engine.script = tuple(tokens("a"))
    ((event,),) = await yields_of(engine, make_payload(STREAM), RAW_OPENAI_OUTPUT="0")
    assert event["output"]["text"] == "a"


async def test_no_line_is_longer_than_the_client_reads(engine: ScriptedEngine) -> None:
    engine.script = tuple(tokens("a", "é" * 700_000))
    yields = await yields_of(engine, make_payload(STREAM))
    assert max(len(line) for text in yields for line in text.encode().split(b"\n")) < LONGEST_LINE
    outputs = outputs_of(yields)
    assert "".join(output["text"] for output in outputs) == "a" + "é" * 700_000
    assert outputs[-1]["num_completion_tokens"] == 2


async def test_a_broken_stream_ends_with_an_error_event(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a", finish=None), EngineDead())
    (first, last), error = split_stream_error(await yields_of(engine, make_payload(STREAM)))
    (event,) = events_in(last)
    content = event["error"]["content"]
    assert outputs_of([first])[0]["text"] == "a"
    assert event.keys() == {"request_id", "error"}
    assert event["error"]["status_code"] == error["code"] == 503
    assert (content["error"], content.keys()) == (error["message"], {"error", "timestamp"})


# One mistake of each kind; tests/unit/job covers the others.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 1.5}, "temperature"),
        ({"max_new_token": 5}, "did you mean 'max_new_tokens'?"),
        ({"prompt": None, "prompts": ["a"]}, "prompt"),
    ],
)
async def test_parameters_outside_of_llm_engines_api_are_refused(
    engine: ScriptedEngine, body: dict[str, Any], message: str
) -> None:
    error = failure(await yields_of(engine, make_payload(SYNC, **body)))
    assert (error["code"], engine.requests) == (400, [])
    assert message in error["message"]
