"""A worker that only trains: it knows its model and checks adapters, and answers nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, refused
from support.engine.scripted import CHAT
from support.models.lora import make_adapter
from support.settings import read_settings

from worker.app import Worker
from worker.engine import Engines
from worker.engine.start.launch import without_engine
from worker.errors import InvalidInput
from worker.volume.adapters import WEIGHTS


@pytest.fixture
def engines(demo_model: Path, tmp_path: Path) -> Iterator[Engines]:
    ready = read_settings({"MODEL_NAME": str(demo_model), "BASE_PATH": str(tmp_path)})
    with without_engine(ready) as engines:
        yield engines


@pytest.fixture
def worker(engines: Engines, demo_model: Path, tmp_path: Path) -> Worker:
    ready = read_settings({"MODEL_NAME": str(demo_model), "BASE_PATH": str(tmp_path)})
    return Worker(engines, ready.settings)


def test_the_model_is_known_as_an_engine_would_serve_it(engines: Engines, demo_model: Path) -> None:
    model = engines.base.model
    assert (model.names, model.place, model.device) == (("demo",), demo_model, "cpu")
    assert (model.max_model_len, model.max_lora_rank) == (2048, 16)
    assert not engines.died.done()


async def test_adapters_are_checked(engines: Engines, demo_model: Path, tmp_path: Path) -> None:
    good = tmp_path / "adapters" / "good"
    make_adapter(good, demo_model)
    await engines.base.check_adapter(good)
    assert await engines.base.adapters_on_volume() == {"good": None}
    (good / WEIGHTS).write_bytes(b"broken")
    with pytest.raises(InvalidInput, match=WEIGHTS):
        await engines.base.check_adapter(good)


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "Hi"},
        {"prompts": ["Hi", "you"]},
        {"route": CHAT, "body": {"messages": [{"role": "user", "content": "Hi"}]}},
        {"route": "/v1/llm/completions-sync", "body": {"prompt": "Hi"}},
        {"route": "/openapi.json"},
        {"batch": {"id": "batch_" + "a" * 24}},
        {"batch": {"requests": [{"custom_id": "a"}], "endpoint": CHAT}},
    ],
    ids=str,
)
async def test_what_needs_an_engine_is_refused(worker: Worker, payload: dict[str, Any]) -> None:
    error = await refused(worker, payload)
    assert error["code"] == 400
    assert "--train" in error["message"]


async def test_what_needs_none_is_answered(worker: Worker) -> None:
    models = await answered(worker, {"route": "/v1/models"})
    assert [card["id"] for card in models["data"]] == ["demo"]
    assert (await answered(worker, {"route": "/health"}))["status"] == "ok"
    assert (await answered(worker, {"route": "/v1/fine_tuning/jobs"}))["data"] == []


async def test_it_goes_on_with_unfinished_fine_tunes_alone(worker: Worker, tmp_path: Path) -> None:
    left: dict[str, dict[str, Any]] = {
        f"batches/batch_{'a' * 24}": {"endpoint": CHAT, "input_file_id": "file-a"},
        f"fine_tunes/ftjob-{'a' * 24}": {"base": "demo", "training_file": "file-a"},
    }
    for place, request in left.items():
        folder = tmp_path / "worker" / place
        folder.mkdir(parents=True)
        known = {"id": folder.name, "created_at": 1, **request}
        (folder / "request.json").write_text(json.dumps(known))
    assert [str(work) for work in worker.unfinished()] == ["fine-tune ftjob-" + "a" * 24]
