"""Batches of LLM Engine on the real engine: requests have the results that they have alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.batches import answered

from worker.app import Worker
from worker.engine import Engines
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

PROMPTS = ["Once upon a time", "What does this worker do?", "There was", "Once upon a time"]
SHARED: dict[str, Any] = {
    "max_new_tokens": 12,
    "temperature": 0,
    "stop_sequences": ["."],
    "return_token_log_probs": True,
    "frequency_penalty": 0.5,
    "top_k": 3,
}
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": prompt}], "max_tokens": 5, "temperature": 0}
    for prompt in PROMPTS
]
TOO_LONG: dict[str, Any] = {**CHATS[0], "max_tokens": 100_000}


@pytest.fixture
def worker(engine: "InProcessEngine", demo_model: Path, tmp_path: Path) -> Worker:
    environ = {"MODEL_NAME": str(demo_model), "FILES_PATH": str(tmp_path)}
    return Worker(Engines(engine), Settings.from_env(environ))


async def array(worker: Worker, route: str, root: Path, **body: Any) -> list[Any]:
    """Run a batch, and return the array that it has written."""
    body |= {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
    created = await answered(worker, {"route": route, "method": "POST", "body": body})
    ended = await answered(worker, created["run_with"]["input"], "runner")
    assert ended["batch"]["status"] == "completed", ended
    found: list[Any] = json.loads((root / "out" / "a.json").read_bytes())
    return found


def taken_out(items: list[Any]) -> list[float]:
    """Take the log probabilities out of items."""
    return [token.pop("log_prob") for item in items for token in item["tokens"]]


async def test_a_v1_batch_has_the_results_of_llm_engines_form(
    worker: Worker, tmp_path: Path
) -> None:
    content = {"prompts": PROMPTS, **SHARED}
    items = await array(worker, "/v1/llm/batch-completions", tmp_path, content=content)
    alone = [
        (await answered(worker, {"format": "llm_engine", "prompt": prompt, **SHARED}))["output"]
        for prompt in PROMPTS
    ]
    # What is computed together may differ in a last digit.
    assert taken_out(items) == pytest.approx(taken_out(alone), abs=1e-3)
    assert items == alone


async def test_a_v2_batch_has_the_results_of_its_route(worker: Worker, tmp_path: Path) -> None:
    content = [CHATS[0], TOO_LONG, *CHATS[1:]]
    items = await array(worker, "/v2/batch-completions", tmp_path, content=content)
    error = items.pop(1)["error"]
    assert (error["code"], "max_tokens" in error["message"]) == (400, True)
    for item, body in zip(items, CHATS, strict=True):
        alone = await answered(worker, {"route": "/v1/chat/completions", "body": body})
        assert (item["choices"], item["usage"]) == (alone["choices"], alone["usage"])
