"""Lists of prompts, LLM Engine's form and its batches, on the real engine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo_model import ANSWERS, PASSAGE
from model.conftest import Ask
from support.batches import answered
from support.engine.requests import text_of

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

GREEDY = {"temperature": 0, "max_tokens": 400}
CONVERSATIONS = [[{"role": "user", "content": question}] for question in ANSWERS]
# In LLM Engine's form.
PASSAGE_OF = {"format": "llm_engine", "prompt": PASSAGE[0], "temperature": 0}


async def test_conversations_are_answered_in_their_order(ask: Ask) -> None:
    (whole,) = await ask(messages_list=CONVERSATIONS, sampling_params=GREEDY)
    assert [text_of([result]) for result in whole["outputs"]] == list(ANSWERS.values())


async def test_streamed_results_come_as_they_finish(ask: Ask) -> None:
    chunks = await ask(messages_list=CONVERSATIONS, sampling_params=GREEDY, stream=True)
    assert {chunk["index"]: text_of([chunk["result"]]) for chunk in chunks} == dict(
        enumerate(ANSWERS.values())
    )
    *others, longest = [chunk["result"]["usage"]["output"] for chunk in chunks]
    assert longest > max(others)
    assert chunks[0]["index"] != 0


async def test_a_bad_prompt_fails_alone(ask: Ask) -> None:
    prompts = [PASSAGE[0], "word " * 2000, 5, [10**6], PASSAGE[0], PASSAGE[0]]
    # vLLM notices the last one's late.
    params = [GREEDY] * 4 + [{"max_tokns": 1}, {"trace_decode_token_ids": []}]
    (whole,) = await ask(prompts=prompts, sampling_params=params)
    first, *others = whole["outputs"]
    assert text_of([first]) == PASSAGE[1]
    assert [sorted(result) for result in others] == [["error"]] * 5
    words = ("1024", "a text", "vocab", "max_tokns", "trace_decode_token_ids")
    for result, expected in zip(others, words, strict=True):
        assert result["error"]["code"] == 400
        assert expected in result["error"]["message"]


async def test_every_prompt_can_have_its_own_parameters(ask: Ask) -> None:
    params = [{"max_tokens": count, "ignore_eos": True} for count in (1, 5, 3)]
    (whole,) = await ask(prompts=["a", "b", "c"], sampling_params=params)
    assert [result["usage"]["output"] for result in whole["outputs"]] == [1, 5, 3]


async def test_a_list_runs_side_by_side_in_the_engine(ask: Ask) -> None:
    # More prompts than the engine takes into one step, and none waits for another.
    params = {"max_tokens": 20, "ignore_eos": True, "seed": 1, "temperature": 1}
    (whole,) = await ask(prompts=["Once"] * 300, sampling_params=params)
    alone = await ask(prompt="Once", sampling_params=params)
    assert {text_of([result]) for result in whole["outputs"]} == {text_of(alone)}


# LLM Engine's form:


async def test_llm_engines_form_is_answered_in_its_shapes(ask: Ask) -> None:
    payload = {**PASSAGE_OF, "max_new_tokens": 60}
    (whole,) = await ask(**payload)
    assert whole["output"]["text"] == PASSAGE[1]
    count = whole["output"]["num_completion_tokens"]
    events = [event["output"] for event in await ask(**payload, stream=True)]
    assert "".join(event["text"] for event in events) == PASSAGE[1]
    assert [event["finished"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["num_completion_tokens"] == count
    assert events[-1]["num_prompt_tokens"] == whole["output"]["num_prompt_tokens"]


async def test_llm_engines_log_probabilities_come_a_token_an_event(ask: Ask) -> None:
    payload = {**PASSAGE_OF, "max_new_tokens": 9, "return_token_log_probs": True}
    (whole,) = await ask(**payload)
    events = await ask(**payload, stream=True)
    assert [event["output"]["token"] for event in events] == whole["output"]["tokens"]
    assert [event["output"]["num_completion_tokens"] for event in events] == list(range(1, 10))


async def test_llm_engines_defaults_hold(ask: Ask) -> None:
    (whole,) = await ask(format="llm_engine", prompt="Once", stop_sequences=["zzz"])
    assert whole["output"]["num_completion_tokens"] <= 20
    (greedy,) = await ask(format="llm_engine", prompt="Once", temperature=0)
    assert greedy["output"]["num_completion_tokens"] == 20


# LLM Engine's batches: requests have the results that they have alone.

PROMPTS = ["Once upon a time", "What does this worker do?", "There was", "Once upon a time"]
SHARED: dict[str, Any] = {
    "max_new_tokens": 12,
    "temperature": 0,
    "stop_sequences": ["."],
    "return_token_log_probs": True,
    "frequency_penalty": 0.5,
    "top_k": 3,
}


@pytest.fixture
def filing_worker(demo_engine: "InProcessEngine", demo_model: Path, tmp_path: Path) -> Worker:
    environ = {"MODEL_NAME": str(demo_model), "FILES_PATH": str(tmp_path)}
    return Worker(Engines(demo_engine), Settings.from_env(environ))


async def array(worker: Worker, route: str, root: Path, **body: Any) -> list[Any]:
    """Run a batch, and return the array that it has written."""
    body |= {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
    created = await answered(worker, {"route": route, "method": "POST", "body": body})
    ended = await answered(worker, created["run_with"]["input"], "runner")
    assert ended["batch"]["status"] == "completed", ended
    found: list[Any] = json.loads((root / "out" / "a.json").read_bytes())
    return found


def popped_log_probabilities(items: list[Any]) -> list[float]:
    return [token.pop("log_prob") for item in items for token in item["tokens"]]


async def test_a_list_and_a_v1_batch_have_the_results_of_single_prompts(
    filing_worker: Worker, tmp_path: Path
) -> None:
    form = {"format": "llm_engine", **SHARED}
    content = {"prompts": PROMPTS, **SHARED}
    batch = await array(filing_worker, "/v1/llm/batch-completions", tmp_path, content=content)
    listed = (await answered(filing_worker, {**form, "prompts": PROMPTS}))["outputs"]
    alone = [
        (await answered(filing_worker, {**form, "prompt": prompt}))["output"] for prompt in PROMPTS
    ]
    # What is computed together may differ in a last digit.
    expected = pytest.approx(popped_log_probabilities(alone), abs=1e-3)
    assert popped_log_probabilities(batch) == expected
    assert popped_log_probabilities(listed) == expected
    assert batch == listed == alone


async def test_a_v2_batch_has_the_results_of_its_route(
    filing_worker: Worker, tmp_path: Path
) -> None:
    chats: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": prompt}], "max_tokens": 5, "temperature": 0}
        for prompt in PROMPTS
    ]
    content = [chats[0], {**chats[0], "max_tokens": 100_000}, *chats[1:]]
    items = await array(filing_worker, "/v2/batch-completions", tmp_path, content=content)
    error = items.pop(1)["error"]
    assert (error["code"], "max_tokens" in error["message"]) == (400, True)
    for item, body in zip(items, chats, strict=True):
        alone = await answered(filing_worker, {"route": "/v1/chat/completions", "body": body})
        assert (item["choices"], item["usage"]) == (alone["choices"], alone["usage"])
