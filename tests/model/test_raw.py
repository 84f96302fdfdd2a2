"""The raw path on the real engine."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from demo_model import DIALOGUES, PASSAGE

from worker.app import Worker
from worker.engine import Delta, Engines
from worker.job import RawJob
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

Ask = Callable[..., Awaitable[list[Any]]]

GREEDY = {"temperature": 0, "max_tokens": 500}
LONG = {"max_tokens": 700, "temperature": 0, "ignore_eos": True}
TURNS = [(*turn, dialogue.tools) for dialogue in DIALOGUES for turn in dialogue.turns]
QUESTION = [{"role": "user", "content": "What does this worker do?"}]


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(text for chunk in chunks for text in chunk["choices"][index]["tokens"])


def error_of(chunks: list[Any]) -> dict[str, Any]:
    (chunk,) = chunks
    error: dict[str, Any] = json.loads(chunk["error"])["error"]
    return error


@pytest.mark.parametrize(("messages", "expected", "tools"), TURNS)
async def test_a_conversation_is_answered_as_the_model_was_taught(
    ask: Ask, messages: list[dict[str, str]], expected: str, tools: list[Any]
) -> None:
    payload = {"messages": messages, "tools": tools or None, "sampling_params": GREEDY}
    (whole,) = await ask(**payload)
    chunks = await ask(**payload, stream=True)
    assert joined([whole]) == expected
    assert joined(chunks) == expected
    assert (
        whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    )
    assert whole["usage"] == chunks[-1]["usage"]


async def test_a_prompt_goes_to_the_model_as_it_is(ask: Ask) -> None:
    (whole,) = await ask(prompt=PASSAGE[0], sampling_params=GREEDY)
    assert joined([whole]) == PASSAGE[1]


async def test_a_prompt_becomes_one_user_message_where_the_template_is_asked_for(ask: Ask) -> None:
    content = QUESTION[0]["content"]
    (whole,) = await ask(prompt=content, apply_chat_template=True, sampling_params=GREEDY)
    assert [whole] == await ask(messages=QUESTION, sampling_params=GREEDY)


async def test_any_role_that_the_template_knows_is_taken(ask: Ask) -> None:
    messages = [{"role": "critic", "content": "Too long."}, *QUESTION]
    params = {"max_tokens": 3, "ignore_eos": True}
    (whole,) = await ask(messages=messages, sampling_params=params)
    assert whole["usage"]["output"] == 3


async def test_chunks_hold_1_3_9_27_50_tokens_and_the_usage_is_exact(ask: Ask) -> None:
    chunks = await ask(messages=QUESTION, sampling_params={**LONG, "max_tokens": 205}, stream=True)
    assert [chunk["usage"]["output"] for chunk in chunks] == [1, 4, 13, 40, 90, 140, 190, 205]
    assert [len(chunk["choices"][0]["tokens"]) for chunk in chunks] == [1, 3, 9, 27, 50, 50, 50, 15]
    assert {chunk["usage"]["input"] for chunk in chunks} == {14}
    assert ["finish_reason" in chunk["choices"][0] for chunk in chunks] == [False] * 7 + [True]


async def test_chunk_sizes_of_a_job_win_over_the_settings(ask: Ask) -> None:
    sizes = {"max_batch_size": 6, "min_batch_size": 2, "batch_size_growth_factor": 1.5}
    params = {**LONG, "max_tokens": 23}
    chunks = await ask(messages=QUESTION, sampling_params=params, stream=True, **sizes)
    assert [chunk["usage"]["output"] for chunk in chunks] == [2, 5, 10, 16, 22, 23]


class Pausing:
    """The engine, whose answers are read only once they are complete: vLLM merges what waits."""

    def __init__(self, engine: "InProcessEngine") -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, job: RawJob, request_id: str) -> AsyncGenerator[Delta, None]:
        async with aclosing(self._engine.generate(job, request_id)) as deltas:
            yield await anext(deltas)
            while self._engine.unfinished_requests:
                await asyncio.sleep(0.01)
            async for delta in deltas:
                yield delta


async def test_outputs_that_vllm_merges_are_still_counted_and_cut_token_by_token(
    ask: Ask, engine: "InProcessEngine", settings: Settings
) -> None:
    params = {**LONG, "max_tokens": 250}
    (whole,) = await ask(messages=QUESTION, sampling_params=params)
    pausing: Any = Pausing(engine)
    payload = {"messages": QUESTION, "sampling_params": params, "stream": True}
    handled = Worker(Engines(pausing), settings).handle({"id": "job-1", "input": payload})
    chunks = [chunk async for chunk in handled]
    assert joined(chunks) == joined([whole])
    sizes = [len(chunk["choices"][0]["tokens"]) for chunk in chunks]
    assert sizes == [1, 3, 9, 27, 50, 50, 50, 50, 10]
    assert chunks[-1]["usage"]["output"] == sum(sizes) == 250


async def test_the_text_before_a_stop_string_is_returned_with_the_reason(ask: Ask) -> None:
    (whole,) = await ask(messages=QUESTION, sampling_params={**GREEDY, "stop": " endpoint"})
    assert joined([whole]).endswith("a serverless")
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["stop_reason"] == " endpoint"


async def test_an_answer_that_was_cut_says_so(ask: Ask) -> None:
    (whole,) = await ask(messages=QUESTION, sampling_params={"temperature": 0})
    assert whole["usage"]["output"] == 16  # DEFAULT_MAX_TOKENS
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_several_choices_come_under_their_own_index(ask: Ask) -> None:
    params = {"n": 3, "seed": 5, "max_tokens": 30, "ignore_eos": True}
    (whole,) = await ask(prompt="Once", sampling_params=params)
    chunks = await ask(prompt="Once", sampling_params=params, stream=True)
    texts = [joined([whole], index) for index in range(3)]
    assert len(set(texts)) > 1
    assert [joined(chunks, index) for index in range(3)] == texts
    assert chunks[-1]["usage"]["output"] == whole["usage"]["output"] == 90
    assert all(choice["finish_reason"] == "length" for choice in chunks[-1]["choices"])


async def test_a_seed_repeats_a_sample_and_another_seed_does_not(ask: Ask) -> None:
    first, again, other = [
        joined(await ask(prompt="Once", sampling_params={"seed": seed, "max_tokens": 40}))
        for seed in (1, 1, 2)
    ]
    assert first == again != other


async def test_log_probabilities_come_in_step_with_the_tokens(ask: Ask) -> None:
    params = {**GREEDY, "max_tokens": 20, "logprobs": 2}
    chunks = await ask(messages=QUESTION, sampling_params=params, stream=True)
    for chunk in chunks:
        choice = chunk["choices"][0]
        assert len(choice["logprobs"]) == len(choice["tokens"])
    positions = [position for chunk in chunks for position in chunk["choices"][0]["logprobs"]]
    assert "".join(position["token"] for position in positions) == joined(chunks)
    assert all(len(position["top"]) == 2 for position in positions)
    assert all(position["top"][0]["logprob"] <= 0 for position in positions)


@pytest.mark.parametrize(
    ("payload", "status", "param", "message"),
    [
        ({"sampling_params": {"max_tokens": -1}}, 400, "max_tokens", "at least 1"),
        ({"sampling_params": {"max_tokens": "5"}}, 400, "max_tokens", "valid integer"),
        ({"sampling_params": {"max_tokns": 5}}, 400, "max_tokns", "'max_tokens'"),
        ({"sampling_params": {"output_kind": 1}}, 400, "output_kind", "unknown key"),
        ({"sampling_params": {"stream": True}}, 400, "stream", "it stands beside sampling_params"),
        ({"sampling_params": {"priority": 1}}, 400, "priority", "SCHEDULING_POLICY=priority"),
        ({"sampling_params": {"n": 2, "temperature": 0}}, 400, "n", "greedy"),
        ({"sampling_params": {"seed": 10**30}}, 400, "sampling_params.seed", "64 bits"),
        ({"sampling_params": {"top_p": float("nan")}}, 400, "top_p", "must be in (0, 1]"),
        ({"prompt": "token " * 2000}, 400, "input_tokens", "1,024"),
        ({"sampling_params": {"n": 257}}, 400, "n", "equal to 256"),
        ({"sampling_params": {"stop": "\ud800"}}, 400, None, "surrogate"),
        (
            {"sampling_params": {"structured_outputs": {"whitespce": 1}}},
            400,
            "whitespce",
            "unknown",
        ),
        (
            {"sampling_params": {"structured_outputs": {"regex": "a", "choice": ["b"]}}},
            *(400, "structured_outputs.regex", "not more"),
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_the_engine_refuses_fails_with_the_reason(
    ask: Ask, payload: dict[str, Any], status: int, param: str | None, message: str, stream: bool
) -> None:
    error = error_of(await ask(**{"prompt": "Hi", **payload}, stream=stream))
    assert (error["code"], error["param"]) == (status, param)
    assert message in error["message"]
    assert error["retryable"] is False
    assert error["request_id"] == "job-1"
