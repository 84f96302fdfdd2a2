"""Lists of prompts, and LLM Engine's form, on the real engine."""

from collections.abc import Awaitable, Callable
from typing import Any

from demo_model import ANSWERS, PASSAGE

Ask = Callable[..., Awaitable[list[Any]]]

GREEDY = {"temperature": 0, "max_tokens": 400}
CONVERSATIONS = [[{"role": "user", "content": question}] for question in ANSWERS]


def text(result: dict[str, Any]) -> str:
    return "".join(result["choices"][0]["tokens"])


async def test_conversations_are_answered_in_their_order(ask: Ask) -> None:
    (whole,) = await ask(messages_list=CONVERSATIONS, sampling_params=GREEDY)
    assert [text(result) for result in whole["outputs"]] == list(ANSWERS.values())


async def test_streamed_results_come_as_they_finish(ask: Ask) -> None:
    chunks = await ask(messages_list=CONVERSATIONS, sampling_params=GREEDY, stream=True)
    assert {chunk["index"]: text(chunk["result"]) for chunk in chunks} == dict(
        enumerate(ANSWERS.values())
    )
    *others, longest = [chunk["result"]["usage"]["output"] for chunk in chunks]
    assert longest > max(others)
    assert chunks[0]["index"] != 0


async def test_one_bad_prompt_fails_alone(ask: Ask) -> None:
    prompts = [PASSAGE[0], "word " * 2000, 5, [10**6], PASSAGE[0]]
    params = [GREEDY, GREEDY, GREEDY, GREEDY, {"max_tokns": 1}]
    (whole,) = await ask(prompts=prompts, sampling_params=params)
    first, *others = whole["outputs"]
    assert text(first) == PASSAGE[1]
    messages = [result["error"]["message"] for result in others]
    for message, expected in zip(messages, ("1024", "a text", "vocab", "max_tokns"), strict=True):
        assert expected in message
    assert {result["error"]["code"] for result in others} == {400}


async def test_every_prompt_can_have_its_own_parameters(ask: Ask) -> None:
    params = [{"max_tokens": count, "ignore_eos": True} for count in (1, 5, 3)]
    (whole,) = await ask(prompts=["a", "b", "c"], sampling_params=params)
    assert [result["usage"]["output"] for result in whole["outputs"]] == [1, 5, 3]


async def test_a_list_runs_side_by_side_in_the_engine(ask: Ask) -> None:
    # More prompts than the engine takes into one step, and none waits for another.
    params = {"max_tokens": 20, "ignore_eos": True, "seed": 1, "temperature": 1}
    (whole,) = await ask(prompts=["Once"] * 300, sampling_params=params)
    (alone,) = await ask(prompt="Once", sampling_params=params)
    assert {text(result) for result in whole["outputs"]} == {text(alone)}


async def test_llm_engines_form_is_answered_in_its_shapes(ask: Ask) -> None:
    payload = {"format": "llm_engine", "prompt": PASSAGE[0], "temperature": 0, "max_new_tokens": 60}
    (whole,) = await ask(**payload)
    assert whole["output"]["text"] == PASSAGE[1]
    count = whole["output"]["num_completion_tokens"]
    events = [event["output"] for event in await ask(**payload, stream=True)]
    assert "".join(event["text"] for event in events) == PASSAGE[1]
    assert [event["finished"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["num_completion_tokens"] == count
    assert events[-1]["num_prompt_tokens"] == whole["output"]["num_prompt_tokens"]


async def test_llm_engines_log_probabilities_come_a_token_an_event(ask: Ask) -> None:
    payload = {"format": "llm_engine", "prompt": PASSAGE[0], "temperature": 0, "max_new_tokens": 9}
    (whole,) = await ask(**payload, return_token_log_probs=True)
    events = await ask(**payload, return_token_log_probs=True, stream=True)
    assert [event["output"]["token"] for event in events] == whole["output"]["tokens"]
    assert [event["output"]["num_completion_tokens"] for event in events] == list(range(1, 10))


async def test_llm_engines_batch_gives_an_output_a_prompt(ask: Ask) -> None:
    (whole,) = await ask(
        format="llm_engine", prompts=[PASSAGE[0], "Hi"], temperature=0, max_new_tokens=60
    )
    first, second = whole["outputs"]
    assert first["text"] == PASSAGE[1]
    assert sorted(second) == ["num_completion_tokens", "num_prompt_tokens", "text"]


async def test_llm_engines_defaults_hold(ask: Ask) -> None:
    (whole,) = await ask(format="llm_engine", prompt="Once", stop_sequences=["zzz"])
    assert whole["output"]["num_completion_tokens"] <= 20
    (greedy,) = await ask(format="llm_engine", prompt="Once", temperature=0)
    assert greedy["output"]["num_completion_tokens"] == 20
