"""A worker that only trains: it knows its model and checks adapters, and answers nothing else."""

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
from worker.engine.launch import without_engine
from worker.errors import InvalidInput
from worker.volume.adapters import WEIGHTS


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def engines(demo_model: Path, volume: Path) -> Iterator[Engines]:
    ready = read_settings({"MODEL_NAME": str(demo_model), "BASE_PATH": str(volume)})
    with without_engine(ready.settings, ready.arguments) as engines:
        yield engines


def worker_of(engines: Engines, volume: Path, model: Path) -> Worker:
    ready = read_settings({"MODEL_NAME": str(model), "BASE_PATH": str(volume)})
    return Worker(engines, ready.settings)


def test_the_model_is_known_as_an_engine_would_serve_it(engines: Engines, demo_model: Path) -> None:
    model = engines.main.model
    assert (model.names, model.place, model.device) == (("demo",), demo_model, "cpu")
    assert (model.max_model_len, model.max_lora_rank) == (2048, 16)
    assert not engines.died.done()


async def test_adapters_are_checked_by_the_rules_that_an_engine_loads_them_by(
    engines: Engines, demo_model: Path, tmp_path: Path
) -> None:
    good = tmp_path / "adapters" / "good"
    make_adapter(good, demo_model)
    await engines.main.check_adapter(good)
    assert await engines.main.adapters_on_volume() == {"good": None}
    (good / WEIGHTS).write_bytes(b"broken")
    with pytest.raises(InvalidInput, match=WEIGHTS):
        await engines.main.check_adapter(good)


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "Hi"},
        {"prompts": ["Hi", "you"]},
        {"route": CHAT, "body": {"messages": [{"role": "user", "content": "Hi"}]}},
        {"route": "/v1/llm/completions-sync", "body": {"prompt": "Hi"}},
        {"batch": {"id": "batch_" + "a" * 24}},
        {"batch": {"requests": [{"custom_id": "a"}], "endpoint": CHAT}},
    ],
    ids=str,
)
async def test_what_needs_an_engine_is_refused(
    engines: Engines, volume: Path, demo_model: Path, payload: dict[str, Any]
) -> None:
    error = await refused(worker_of(engines, volume, demo_model), payload)
    assert error["code"] == 400
    assert "--train" in error["message"]


async def test_what_needs_none_is_answered(
    engines: Engines, volume: Path, demo_model: Path
) -> None:
    worker = worker_of(engines, volume, demo_model)
    models = await answered(worker, {"route": "/v1/models"})
    assert [card["id"] for card in models["data"]] == ["demo"]
    assert (await answered(worker, {"route": "/health"}))["status"] == "ok"
    assert (await answered(worker, {"route": "/v1/fine_tuning/jobs"}))["data"] == []


async def test_of_what_is_left_on_the_volume_it_goes_on_with_fine_tunes_alone(
    engines: Engines, volume: Path, demo_model: Path
) -> None:
    worker = worker_of(engines, volume, demo_model)
    for folder, id in (("batches", "batch_" + "a" * 24), ("fine_tunes", "ftjob-" + "a" * 24)):
        place = volume / "worker" / folder / id
        place.mkdir(parents=True)
        shared = f'"id": "{id}", "created_at": 1'
        rest = {
            "batches": f'"endpoint": "{CHAT}", "input_file_id": "file-a"',
            "fine_tunes": '"base": "demo", "training": {"file_id": "file-a"}',
        }[folder]
        (place / "request.json").write_text(f"{{{shared}, {rest}}}")
    assert [str(work) for work in worker.unfinished()] == ["fine-tune ftjob-" + "a" * 24]
