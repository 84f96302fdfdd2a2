"""The form of Scale's LLM Engine through the worker, up to what the SDK gets."""

from typing import Any

import pytest
from support.engine.answers import EXACT, answered, detailed
from support.engine.scripted import Step, tokens

from worker.engine import Delta

TEXTS = [" a", " b", "", " ç", "😀", " end"]
WHOLE = {"text": "ab", "num_prompt_tokens": 3, "num_completion_tokens": 2}


def completion(**keys: Any) -> dict[str, Any]:
    return {"format": "llm_engine", "prompt": "Hi", **keys}


LOGGED = completion(stream=True, return_token_log_probs=True, max_batch_size=50)


def position(text: str) -> dict[str, Any]:
    """Return the engine's log probabilities of a token; this form has only some of them."""
    chosen = {"token": text, "id": 7, "logprob": -0.5}
    return {**chosen, "top": [chosen]}


def log_probs(*texts: str) -> list[dict[str, Any]]:
    return [{"token": text, "log_prob": -0.5} for text in texts]


def one_by_one(*texts: str, finish: str | None = "stop") -> list[Step]:
    """Script tokens with their log probabilities."""
    ends = [None] * (len(texts) - 1) + [finish]
    return [
        Delta(0, text, 1, 3, end, None, [position(text)])
        for text, end in zip(texts, ends, strict=True)
    ]


def outputs(yields: list[Any]) -> list[dict[str, Any]]:
    assert {chunk["request_id"] for chunk in yields} == {"job-1"}
    return [chunk["output"] for chunk in yields]


# Not streaming:

BOTH = Delta(0, "ab", 2, 3, "length", None, [position("a"), position("b")])


@pytest.mark.parametrize(("logged", "more"), [(False, {}), (True, {"tokens": log_probs("a", "b")})])
async def test_an_answer_and_each_of_a_list_have_log_probabilities_if_they_are_asked_for(
    logged: bool, more: dict[str, Any]
) -> None:
    payload = completion(return_token_log_probs=logged)
    output = {**WHOLE, **more}
    assert await detailed(payload, BOTH) == [{"request_id": "job-1", "output": output}]
    payload |= {"prompt": None, "prompts": ["Hi", 7, "Ho"]}
    ((first, wrong, last),) = [chunk["outputs"] for chunk in await detailed(payload, BOTH)]
    assert (first, last) == (output, output)
    assert (wrong["error"]["code"], wrong["error"]["param"]) == (400, "prompt")
    streamed = await detailed({**payload, "stream": True}, BOTH)
    results = {chunk["index"]: chunk["result"] for chunk in streamed}
    assert (results[0], results[2]) == (output, output)


# Streaming:


async def test_each_yield_of_a_stream_is_one_event() -> None:
    last = {"text": "😀 end", "num_completion_tokens": 6, "finished": True, "num_prompt_tokens": 3}
    assert outputs(await answered(completion(stream=True, **EXACT), *tokens(*TEXTS))) == [
        {"text": " a", "num_completion_tokens": 1, "finished": False},
        {"text": " b ç", "num_completion_tokens": 4, "finished": False},
        last,
    ]


async def test_with_log_probabilities_an_event_is_one_token() -> None:
    events = outputs(await detailed(LOGGED, *one_by_one(*TEXTS)))
    ends = [{"finished": False}] * 5 + [{"finished": True, "num_prompt_tokens": 3}]
    assert events == [
        {"text": text, "token": log_prob, "num_completion_tokens": count, **end}
        for count, (text, log_prob, end) in enumerate(
            zip(TEXTS, log_probs(*TEXTS), ends, strict=True), 1
        )
    ]
