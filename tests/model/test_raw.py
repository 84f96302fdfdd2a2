"""The raw path on the real engine: prompts as they reach the model, and what comes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from demo_model import DIALOGUES, PASSAGE, TOOL_USE
from model.conftest import Ask
from support.engine.requests import text_of

from worker.app import Worker
from worker.engine import Delta, Engines
from worker.job import RawJob
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

GREEDY = {"temperature": 0, "max_tokens": 500}
LONG = {"max_tokens": 700, "temperature": 0, "ignore_eos": True}
TURNS = [(*turn, dialogue.tools) for dialogue in DIALOGUES for turn in dialogue.turns]
QUESTION = [{"role": "user", "content": "What does this worker do?"}]
COUNT: list[dict[str, Any]] = [{"role": "user", "content": "Count to ten."}]
BEGUN = [*COUNT, {"role": "assistant", "content": "one, two, three"}]


@pytest.mark.parametrize(("messages", "expected", "tools"), TURNS)
async def test_a_conversation_is_answered_as_the_model_was_taught(
    ask: Ask, messages: list[dict[str, str]], expected: str, tools: list[Any]
) -> None:
    payload = {"messages": messages, "tools": tools or None, "sampling_params": GREEDY}
    (whole,) = await ask(**payload)
    chunks = await ask(**payload, stream=True)
    assert text_of([whole]) == text_of(chunks) == expected
    reasons = [answer["choices"][0]["finish_reason"] for answer in (whole, chunks[-1])]
    assert reasons == ["stop", "stop"]
    assert whole["usage"] == chunks[-1]["usage"]


async def test_a_prompt_becomes_one_user_message_where_the_template_is_asked_for(ask: Ask) -> None:
    content = QUESTION[0]["content"]
    (whole,) = await ask(prompt=content, apply_chat_template=True, sampling_params=GREEDY)
    assert [whole] == await ask(messages=QUESTION, sampling_params=GREEDY)


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": [{"role": "critic", "content": "Too long."}, *QUESTION]},
        {"prompt": "Hi", "model": "demo"},
    ],
    ids=["a role that only the template knows", "the model's name"],
)
async def test_a_job_may_have(payload: dict[str, Any], ask: Ask) -> None:
    (whole,) = await ask(**payload, sampling_params={"max_tokens": 3, "ignore_eos": True})
    assert whole["usage"]["output"] == 3


# Prompts as ids:


async def ids_of(engine: "InProcessEngine", **payload: Any) -> list[int]:
    prompt = await engine.generation.prompts.render_job(RawJob.read(payload))
    ids: list[int] = prompt["prompt_token_ids"]
    return ids


CALL = {"name": "job_status", "arguments": '{"job_id": "42"}'}
CALLED = [
    {"role": "user", "content": "Is job 42 done?"},
    {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call-1", "content": '{"status": "COMPLETED"}'},
]


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": [{"role": "system", "content": "You are a pirate. 🏴‍☠️"}, *COUNT]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"}]},
        {"messages": TOOL_USE.messages, "tools": TOOL_USE.tools},
        {"messages": CALLED, "tools": TOOL_USE.tools},
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
        {"messages": BEGUN, "add_generation_prompt": False},
        {"messages": COUNT, "chat_template_kwargs": {"add_generation_prompt": False}},
    ],
)
async def test_a_conversation_is_the_same_prompt_on_both_paths(
    payload: dict[str, Any], ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    # The demo worker has no tool parser, so its OpenAI path takes tools only to show them.
    choice = {"tool_choice": "none"} if "tools" in payload else {}
    body = {**payload, **choice, "max_tokens": 1, "return_token_ids": True}
    (answer,) = await ask(openai_route="/v1/chat/completions", openai_input=body)
    assert await ids_of(demo_engine, **payload) == answer["prompt_token_ids"]


async def test_a_message_that_is_continued_begins_no_new_turn(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    payload: dict[str, Any] = {"messages": BEGUN, "continue_final_message": True}
    without = await ids_of(demo_engine, **payload, add_generation_prompt=False)
    assert await ids_of(demo_engine, **payload) == without
    (whole,) = await ask(**payload, sampling_params={"temperature": 0, "max_tokens": 40})
    assert whole["choices"][0]["tokens"] == [", four, five, six, seven, eight, nine, ten"]


async def test_a_prompt_as_ids_is_the_prompt_as_text(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    params = {"temperature": 0, "max_tokens": 60}
    ids = await ids_of(demo_engine, prompt=PASSAGE[0])
    (as_text,) = await ask(prompt=PASSAGE[0], sampling_params=params)
    assert [as_text] == await ask(prompt=ids, sampling_params=params)
    assert as_text["choices"][0]["tokens"] == [PASSAGE[1]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answers_ids_are_returned_where_asked_for(
    stream: bool, ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    params = {"temperature": 0, "max_tokens": 40}
    asked = {"messages": COUNT, "sampling_params": params, "return_token_ids": True}
    chunks = await ask(**asked, stream=stream)
    ids = [id_ for chunk in chunks for id_ in chunk["choices"][0]["token_ids"]]
    assert len(ids) == chunks[-1]["usage"]["output"]
    # The last token ends the turn.
    assert await ids_of(demo_engine, prompt=text_of(chunks)) == [0, *ids[:-1]]


# Chunks:


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
    ask: Ask, demo_engine: "InProcessEngine", settings: Settings
) -> None:
    params = {**LONG, "max_tokens": 250}
    whole = await ask(messages=QUESTION, sampling_params=params)
    pausing: Any = Pausing(demo_engine)
    payload = {"messages": QUESTION, "sampling_params": params, "stream": True}
    handled = Worker(Engines(pausing), settings).handle({"id": "job-1", "input": payload})
    chunks = [chunk async for chunk in handled]
    assert text_of(chunks) == text_of(whole)
    sizes = [len(chunk["choices"][0]["tokens"]) for chunk in chunks]
    assert sizes == [1, 3, 9, 27, 50, 50, 50, 50, 10]
    assert chunks[-1]["usage"]["output"] == sum(sizes) == 250


async def test_special_tokens_that_are_shown_stand_at_their_places_in_a_stream(ask: Ask) -> None:
    params = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "skip_special_tokens": False}
    whole = await ask(messages=COUNT, sampling_params=params)
    # Several tokens at once, so that the worker has to split the text.
    chunks = await ask(
        messages=COUNT, sampling_params={**params, "stream_interval": 20}, stream=True
    )
    assert text_of(chunks) == text_of(whole)
    assert "<|im_end|>" in [text for chunk in chunks for text in chunk["choices"][0]["tokens"]]


# Answers:


async def test_the_text_before_a_stop_string_is_returned_with_the_reason(ask: Ask) -> None:
    (whole,) = await ask(messages=QUESTION, sampling_params={**GREEDY, "stop": " endpoint"})
    assert text_of([whole]).endswith("a serverless")
    (choice,) = whole["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " endpoint")


async def test_several_choices_come_under_their_own_index(ask: Ask) -> None:
    params = {"n": 3, "seed": 5, "max_tokens": 30, "ignore_eos": True}
    (whole,) = await ask(prompt="Once", sampling_params=params)
    chunks = await ask(prompt="Once", sampling_params=params, stream=True)
    texts = [text_of([whole], index) for index in range(3)]
    assert len(set(texts)) > 1
    assert [text_of(chunks, index) for index in range(3)] == texts
    assert chunks[-1]["usage"]["output"] == whole["usage"]["output"] == 90
    assert all(choice["finish_reason"] == "length" for choice in chunks[-1]["choices"])


async def test_log_probabilities_come_in_step_with_the_tokens(ask: Ask) -> None:
    params = {**GREEDY, "max_tokens": 20, "logprobs": 2}
    chunks = await ask(messages=QUESTION, sampling_params=params, stream=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [len(choice["logprobs"]) for choice in choices] == [
        len(choice["tokens"]) for choice in choices
    ]
    positions = [position for choice in choices for position in choice["logprobs"]]
    assert "".join(position["token"] for position in positions) == text_of(chunks)
    assert all(len(position["top"]) == 2 for position in positions)
    assert all(position["top"][0]["logprob"] <= 0 for position in positions)
