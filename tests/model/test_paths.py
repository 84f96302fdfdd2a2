"""Tests of raw and OpenAI jobs on the real engine: rendered prompts and responses."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo_model import DIALOGUES, PASSAGE, TOOL_USE
from model.conftest import Ask
from support.batches import run_job
from support.engine.requests import text_of
from support.engine.scripted import CHAT, events_in

from worker.app import Worker
from worker.engine import Engines
from worker.job import RawJob
from worker.record import JobRecord
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

MESSAGES = "/v1/messages"
GREEDY = {"temperature": 0, "max_tokens": 500}
TURNS = [(*turn, dialogue.tools) for dialogue in DIALOGUES for turn in dialogue.turns]
QUESTION = [{"role": "user", "content": "What does this worker do?"}]
COUNT: list[dict[str, Any]] = [{"role": "user", "content": "Count to ten."}]
UNFINISHED = [*COUNT, {"role": "assistant", "content": "one, two, three"}]


@pytest.mark.parametrize(
    ("messages", "expected", "tools"),
    [*TURNS[:5], *(pytest.param(*turn, marks=pytest.mark.slow) for turn in TURNS[5:])],
)
async def test_a_conversation_has_the_answer_that_the_model_learned(
    ask: Ask, messages: list[dict[str, str]], expected: str, tools: list[Any]
) -> None:
    payload = {"messages": messages, "tools": tools or None, "sampling_params": GREEDY}
    (whole,) = await ask(**payload)
    chunks = await ask(**payload, stream=True)
    assert text_of([whole]) == text_of(chunks) == expected
    reasons = [answer["choices"][0]["finish_reason"] for answer in (whole, chunks[-1])]
    assert reasons == ["stop", "stop"]
    assert whole["usage"] == chunks[-1]["usage"]


async def test_a_prompt_with_apply_chat_template_becomes_one_user_message(ask: Ask) -> None:
    content = QUESTION[0]["content"]
    (whole,) = await ask(prompt=content, apply_chat_template=True, sampling_params=GREEDY)
    assert [whole] == await ask(messages=QUESTION, sampling_params=GREEDY)


async def prompt_ids(engine: "InProcessEngine", **payload: Any) -> list[int]:
    prompt = await engine.generation.render_job_prompt(RawJob.from_input(payload))
    ids: list[int] = prompt["prompt_token_ids"]
    return ids


CALL = {"name": "job_status", "arguments": '{"job_id": "42"}'}
TOOL_CONVERSATION = [
    {"role": "user", "content": "Is job 42 done?"},
    {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "call-1", "content": '{"status": "COMPLETED"}'},
]

# The same conversation as transformers has it.
TRANSFORMERS_CALL = {"name": "job_status", "arguments": {"job_id": "42"}}
TRANSFORMERS_CONVERSATION = [
    {"role": "user", "content": ["Is job 42 done?"]},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": TRANSFORMERS_CALL}]},
    {"role": "tool", "content": '{"status": "COMPLETED"}'},
]


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": [{"role": "system", "content": "You are a pirate. 🏴‍☠️"}, *COUNT]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"}]},
        {"messages": TOOL_USE.messages, "tools": TOOL_USE.tools},
        {"messages": TOOL_CONVERSATION, "tools": TOOL_USE.tools},
        {"messages": TRANSFORMERS_CONVERSATION, "tools": TOOL_USE.tools},
        {"messages": UNFINISHED, "continue_final_message": True},
        {"messages": UNFINISHED, "continue_final_message": True, "add_generation_prompt": False},
        {"messages": UNFINISHED, "add_generation_prompt": False},
        {"messages": COUNT, "chat_template_kwargs": {"add_generation_prompt": False}},
    ],
)
async def test_a_conversation_becomes_the_same_prompt_on_both_paths(
    payload: dict[str, Any], ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    # The demo worker has no tool parser, so its OpenAI routes accept tools for the prompt only.
    choice = {"tool_choice": "none"} if "tools" in payload else {}
    body = {**payload, **choice, "max_tokens": 1, "return_token_ids": True}
    (answer,) = await ask(openai_route="/v1/chat/completions", openai_input=body)
    assert await prompt_ids(demo_engine, **payload) == answer["prompt_token_ids"]


async def test_a_continued_message_starts_no_new_turn(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    payload: dict[str, Any] = {"messages": UNFINISHED, "continue_final_message": True}
    without = await prompt_ids(demo_engine, **payload, add_generation_prompt=False)
    assert await prompt_ids(demo_engine, **payload) == without
    (whole,) = await ask(**payload, sampling_params={"temperature": 0, "max_tokens": 40})
    assert whole["choices"][0]["tokens"] == [", four, five, six, seven, eight, nine, ten"]


async def test_every_form_of_a_conversation_becomes_the_same_prompt(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    tools = TOOL_USE.tools
    expected = await prompt_ids(demo_engine, messages=TOOL_CONVERSATION, tools=tools)
    assert (
        await prompt_ids(demo_engine, messages=TRANSFORMERS_CONVERSATION, tools=tools) == expected
    )
    for messages in (TOOL_CONVERSATION, TRANSFORMERS_CONVERSATION):
        body = {"messages": messages, "tools": tools}
        (tokens,) = await ask(openai_route="/tokenize", openai_input=body)
        assert tokens["tokens"] == expected


async def test_a_final_message_of_the_assistant_is_continued_if_the_request_says_so(
    ask: Ask,
) -> None:
    ending = ", four, five, six, seven, eight, nine, ten"
    chat = {"messages": UNFINISHED, **GREEDY}
    (whole,) = await ask(openai_route=CHAT, openai_input={**chat, "continue_final_message": True})
    assert whole["choices"][0]["message"]["content"] == ending
    # Anthropic's route has no such parameter, and begins a turn.
    (message,) = await ask(openai_route=MESSAGES, openai_input=chat)
    (begun,) = await ask(openai_route=CHAT, openai_input=chat)
    assert [part["text"] for part in message["content"]] == [
        begun["choices"][0]["message"]["content"]
    ]


async def test_the_text_of_a_block_is_part_of_the_prompt(ask: Ask) -> None:
    async def count_tokens(blocks: Any) -> int:
        result = {"type": "tool_result", "tool_use_id": "t", "content": blocks}
        body = {"messages": [*COUNT, {"role": "user", "content": [result]}]}
        (counted,) = await ask(openai_route=f"{MESSAGES}/count_tokens", openai_input=body)
        tokens: int = counted["input_tokens"]
        return tokens

    found = {"type": "search_result", "source": "/a", "title": "T", "content": "They grow."}
    reference = {"type": "tool_reference", "tool_name": "weather"}
    assert await count_tokens([found, reference]) == await count_tokens(
        "T\n/a\nThey grow.\nweather"
    )


async def test_a_prompt_of_token_ids_has_the_answer_of_its_text(
    ask: Ask, demo_engine: "InProcessEngine"
) -> None:
    params = {"temperature": 0, "max_tokens": 60}
    ids = await prompt_ids(demo_engine, prompt=PASSAGE[0])
    (as_text,) = await ask(prompt=PASSAGE[0], sampling_params=params)
    assert [as_text] == await ask(prompt=ids, sampling_params=params)
    assert as_text["choices"][0]["tokens"] == [PASSAGE[1]]


async def test_outputs_of_several_tokens_are_split_and_counted_token_by_token(ask: Ask) -> None:
    """vLLM merges outputs that are not read immediately, too."""
    params = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "skip_special_tokens": False}
    whole = await ask(messages=COUNT, sampling_params=params)
    several = {**params, "stream_interval": 20}
    chunks = await ask(messages=COUNT, sampling_params=several, stream=True)
    assert text_of(chunks) == text_of(whole)
    tokens = [text for chunk in chunks for text in chunk["choices"][0]["tokens"]]
    # A special token is at its position.
    assert "<|im_end|>" in tokens
    assert len(tokens) == chunks[-1]["usage"]["output"] == 60


# Lists, and the format of LLM Engine:


async def test_a_bad_prompt_in_a_list_fails_alone(ask: Ask) -> None:
    prompts = [PASSAGE[0], "word " * 2000, 5, [10**6], PASSAGE[0], PASSAGE[0]]
    # vLLM finds the mistake of the last parameters late.
    params = [GREEDY] * 4 + [{"max_tokns": 1}, {"trace_decode_token_ids": []}]
    (whole,) = await ask(prompts=prompts, sampling_params=params)
    first, *others = whole["outputs"]
    assert text_of([first]) == PASSAGE[1]
    assert [sorted(result) for result in others] == [["error"]] * 5
    words = ("1024", "a text", "vocab", "max_tokns", "trace_decode_token_ids")
    for result, expected in zip(others, words, strict=True):
        assert result["error"]["code"] == 400
        assert expected in result["error"]["message"]


async def test_log_probabilities_of_llm_engine_are_streamed_as_one_token_per_event(
    ask: Ask,
) -> None:
    form = {"format": "llm_engine", "prompt": PASSAGE[0], "temperature": 0}
    payload = {**form, "max_new_tokens": 9, "return_token_log_probs": True}
    (whole,) = await ask(**payload)
    events = await ask(**payload, stream=True)
    assert [event["output"]["token"] for event in events] == whole["output"]["tokens"]
    assert [event["output"]["num_completion_tokens"] for event in events] == list(range(1, 10))


PROMPTS = ["Once upon a time", "What does this worker do?", "There was", "Once upon a time"]
SHARED: dict[str, Any] = {
    "max_new_tokens": 12,
    "temperature": 0,
    "stop_sequences": ["."],
    "return_token_log_probs": True,
    "frequency_penalty": 0.5,
    "top_k": 3,
}


def pop_log_probabilities(items: list[Any]) -> list[float]:
    return [token.pop("log_prob") for item in items for token in item["tokens"]]


async def test_a_list_and_a_v1_batch_have_the_results_of_single_prompts(
    demo_engine: "InProcessEngine", demo_model: Path, tmp_path: Path
) -> None:
    environ = {"MODEL_NAME": str(demo_model), "FILES_PATH": str(tmp_path)}
    worker = Worker(Engines(demo_engine), Settings.from_env(environ))
    form = {"format": "llm_engine", **SHARED}
    content = {"prompts": PROMPTS, **SHARED}
    batch = {
        "model_config": {"model": "demo"},
        "output_data_path": "out/a.json",
        "content": content,
    }
    create = {"route": "/v1/llm/batch-completions", "method": "POST", "body": batch}
    created = await run_job(worker, create)
    ended = await run_job(worker, created["run_with"]["input"], "runner")
    assert ended["batch"]["status"] == "completed", ended
    written = json.loads((tmp_path / "out" / "a.json").read_bytes())
    listed = (await run_job(worker, {**form, "prompts": PROMPTS}))["outputs"]
    alone = [(await run_job(worker, {**form, "prompt": prompt}))["output"] for prompt in PROMPTS]
    # Requests that are computed together may differ in the last digit.
    expected = pytest.approx(pop_log_probabilities(alone), abs=1e-3)
    assert pop_log_probabilities(written) == expected
    assert pop_log_probabilities(listed) == expected
    assert written == listed == alone


# OpenAI routes of vLLM's own server, called in this process:


# With tools, several turns, or emoji; the raw jobs above ask for all dialogues.
@pytest.mark.parametrize(
    "dialogue", [one for one in DIALOGUES if one.tools or len(one.turns) > 1 or "🤖" in str(one)]
)
async def test_a_chat_completion_has_the_answer_that_the_model_learned(
    ask: Ask, dialogue: Any
) -> None:
    for messages, expected in dialogue.turns:
        # Without a tool parser, the call remains in the text that the model writes.
        tools = {"tools": dialogue.tools, "tool_choice": "none"} if dialogue.tools else {}
        body = {"messages": messages, "temperature": 0, "max_tokens": 500, **tools}
        (whole,) = await ask(openai_route=CHAT, openai_input=body)
        chunks = await ask(openai_route=CHAT, openai_input={**body, "stream": True})
        assert whole["choices"][0]["message"]["content"] == expected
        assert "job-1" in whole["id"]
        *events, end = events_in("".join(chunks))
        assert "job-1" in events[0]["id"]
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == expected
        assert end == "[DONE]"


STATISTICS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(
    ("per", "options", "events"),
    [
        ("chunk", {}, [1, 1, 1, 1]),
        ("token", {}, [1, 3, 9, 27]),
        # Each event has the usage up to its token.
        ("chunk", STATISTICS, [1, 3, 9, 27]),
    ],
    ids=["chunk", "token", "statistics"],
)
async def test_each_chunk_has_whole_events_and_their_tokens_grow(
    ask: Ask, per: str, options: dict[str, Any], events: list[int]
) -> None:
    body = {"messages": QUESTION, "stream": True, "max_tokens": 50, "ignore_eos": True, **options}
    body["return_token_ids"] = True
    chunks = await ask(openai_route=CHAT, openai_input=body, stream_events=per)
    assert all(chunk.endswith("\n\n") for chunk in chunks)
    choices = [
        [event["choices"][0] for event in events_in(chunk) if event != "[DONE]"]
        for chunk in chunks[:4]
    ]
    # The first chunk also contains the event that opens the choice and has no text.
    assert "role" in choices[0].pop(0)["delta"]
    assert [len(chunk) for chunk in choices] == events
    tokens = [sum(len(choice["token_ids"]) for choice in chunk) for chunk in choices]
    assert tokens == [1, 3, 9, 27]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
SHORT = {"temperature": 0, "max_tokens": 7, "ignore_eos": True}
SHORT_CHAT = {"messages": QUESTION, **SHORT}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, SHORT_CHAT),
        (CHAT, {**SHORT_CHAT, "n": 2, "temperature": 1}),
        (CHAT, {**SHORT_CHAT, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**SHORT_CHAT, "tools": [WEATHER], "tool_choice": "none"}),
        ("/v1/completions", {"prompt": "Once", **SHORT}),
        ("/v1/completions", {"prompt": ["Once", "Twice"], **SHORT, "n": 2, "temperature": 1}),
        ("/v1/responses", {"input": "Hi", "temperature": 0, "max_output_tokens": 7}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 7, "temperature": 0}),
    ],
)
async def test_job_records_have_the_token_counts_of_vllm(
    worker: Worker, route: str, body: dict[str, Any]
) -> None:
    async def run_job(*, stream: bool) -> tuple[Any, tuple[int | None, int | None]]:
        record = JobRecord("job-1")
        payload = {"openai_route": route, "openai_input": {**body, "stream": stream}}
        first, *_ = [part async for part in worker.handle({"id": "j", "input": payload}, record)]
        assert record.status == 200
        return first, (record.usage.prompt_tokens, record.usage.output_tokens)

    whole, counted = await run_job(stream=False)
    usage = whole["usage"]
    prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    assert min(prompt_tokens, output_tokens) > 0
    assert counted == (prompt_tokens, output_tokens) == (await run_job(stream=True))[1]
