"""The models of a worker: the slots of an engine, and a worker that only trains."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.batches import job_error, run_job
from support.engine.scripted import CHAT, settings
from support.models.lora import make_adapter
from support.settings import read_settings

from worker.app import Worker
from worker.engine import Engines
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.start.launch import launch_without_engine
from worker.errors import InvalidInput
from worker.routes.kinds import existing_record_collections
from worker.volume.adapters import WEIGHTS


@pytest.mark.parametrize(
    ("scheduler", "ranks", "slots"),
    [
        ({"max_num_seqs": 8}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": None}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 1, 6),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 2, 12),
    ],
)
async def test_the_slots_of_all_ranks_are_added_up(
    scheduler: dict[str, int], ranks: int, slots: int
) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )
    core: Any = SimpleNamespace(client=SimpleNamespace(vllm_config=config))
    arguments: Any = SimpleNamespace(vllm_args=SimpleNamespace(served_model_name=["demo"]))
    loop = asyncio.get_running_loop()
    engine = InProcessEngine(core, arguments, settings(), loop, Future(), lambda: core)
    assert engine.slots == slots


# A worker that only trains describes its model and checks adapters, but has no engine:


@pytest.fixture
def engines(demo_model: Path, tmp_path: Path) -> Iterator[Engines]:
    settings = read_settings({"MODEL_NAME": str(demo_model), "BASE_PATH": str(tmp_path)})
    with launch_without_engine(settings) as engines:
        yield engines


@pytest.fixture
def worker(engines: Engines, demo_model: Path, tmp_path: Path) -> Worker:
    settings = read_settings({"MODEL_NAME": str(demo_model), "BASE_PATH": str(tmp_path)})
    return Worker(engines, settings.settings)


def test_the_model_is_described_as_an_engine_would_serve_it(
    engines: Engines, demo_model: Path
) -> None:
    model = engines.base_model.model
    assert (model.names, model.directory, model.device) == (("demo",), demo_model, "cpu")
    assert (model.max_model_len, model.max_lora_rank) == (2048, 16)
    assert not engines.died.done()


async def test_adapters_are_checked(engines: Engines, demo_model: Path, tmp_path: Path) -> None:
    good = tmp_path / "adapters" / "good"
    make_adapter(good, demo_model)
    await engines.base_model.check_adapter(good)
    assert await engines.base_model.adapter_problems_on_volume() == {"good": None}
    (good / WEIGHTS).write_bytes(b"broken")
    with pytest.raises(InvalidInput, match=WEIGHTS):
        await engines.base_model.check_adapter(good)


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
async def test_requests_that_need_an_engine_are_refused(
    worker: Worker, payload: dict[str, Any]
) -> None:
    error = await job_error(worker, payload)
    assert error["code"] == 400
    assert "--train" in error["message"]


async def test_requests_that_need_no_engine_are_answered(worker: Worker) -> None:
    models = await run_job(worker, {"route": "/v1/models"})
    assert [card["id"] for card in models["data"]] == ["demo"]
    assert (await run_job(worker, {"route": "/health"}))["status"] == "ok"
    assert (await run_job(worker, {"route": "/v1/fine_tuning/jobs"}))["data"] == []


async def test_only_unfinished_fine_tunes_are_continued(worker: Worker, tmp_path: Path) -> None:
    unfinished: dict[str, dict[str, Any]] = {
        f"batches/batch_{'a' * 24}": {"endpoint": CHAT, "input_file_id": "file-a"},
        f"fine_tunes/ftjob-{'a' * 24}": {"base": "demo", "training_file": "file-a"},
    }
    for place, request in unfinished.items():
        folder = tmp_path / "worker" / place
        folder.mkdir(parents=True)
        record = {"id": folder.name, "created_at": 1, **request}
        (folder / "request.json").write_text(json.dumps(record))
    for records in existing_record_collections(settings(FILES_PATH=str(tmp_path))):
        # Adds the records to the indexes.
        records.sweep()
    assert [str(work) for work in worker.list_unfinished_work()] == ["fine-tune ftjob-" + "a" * 24]
