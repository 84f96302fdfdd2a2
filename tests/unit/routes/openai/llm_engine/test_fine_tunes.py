"""LLM Engine's routes for fine-tunes, in the words that its client reads."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batches import answered, refused, worker_at
from support.engine.scripted import ScriptedEngine, replying, settings
from support.told import created, loss, tell, uploaded

from worker.app import Worker
from worker.fine_tunes.request import Error, Result
from worker.fine_tunes.store import FineTunes

FINE_TUNES = "/v1/llm/fine-tunes"
CARDS = [{"id": "demo", "parent": None}]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with ScriptedEngine(app=replying(json.dumps({"object": "list", "data": CARDS}))) as engine:
        engine.model = replace(engine.model, place=tmp_path, max_lora_rank=16)
        yield worker_at(tmp_path, engine)


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    return FineTunes.of(settings(FILES_PATH=str(tmp_path)))


async def ask(worker: Worker, method: str, path: str = "", body: Any = None) -> Any:
    payload = {"route": f"{FINE_TUNES}{path}", "method": method, "body": body}
    return await answered(worker, payload)


async def refusal(worker: Worker, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
    payload = {"route": f"{FINE_TUNES}{path}", "method": method, "body": body}
    return await refused(worker, payload)


async def test_the_body_that_the_client_sends_creates_one(
    worker: Worker, fine_tunes: FineTunes
) -> None:
    body = {
        "model": "demo",
        "training_file": uploaded(fine_tunes),
        "validation_file": None,
        # The client writes numbers as texts.
        "hyperparameters": {"epochs": "1", "lr": "0.0002", "peft_config": {"r": 8}},
        "wandb_config": None,
        "suffix": "my-experiment",
    }
    answer = await ask(worker, "POST", body=body)
    (fine_tune,) = fine_tunes.all()
    assert (answer["id"], answer["fine_tune_id"]) == (fine_tune.id, fine_tune.id)
    assert answer["run_with"] == {"input": {"fine_tune": {"id": fine_tune.id}}}
    kept = fine_tune.request
    assert (kept.spec.epochs, kept.spec.learning_rate, kept.spec.lora.r) == (1, 2e-4, 8)
    assert (kept.suffix, kept.wandb) == ("my-experiment", None)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": "other"}, "model"),
        ({"training_file": "file-none"}, "training_file"),
        ({"hyperparameters": {"learning_rate": 1}}, "hyperparameters.learning_rate"),
        ({"hyperparameters": {"report_to": "tensorboard"}}, "hyperparameters.report_to"),
        ({"suffix": ""}, "suffix"),
        ({"suffix": "../x"}, "suffix"),
        ({"n_epochs": 1}, "n_epochs"),
        (
            {"hyperparameters": {"report_to": "wandb"}, "wandb_config": {"api_key": "word"}},
            "wandb_config.api_key",
        ),
        (
            {"hyperparameters": {"report_to": "wandb"}, "wandb_config": {"base_url": "http://a"}},
            "wandb_config.base_url",
        ),
        ({"hyperparameters": {"report_to": "wandb"}}, "integrations"),
    ],
)
async def test_what_is_wrong_is_refused_naming_the_field(
    worker: Worker, fine_tunes: FineTunes, changes: dict[str, Any], param: str
) -> None:
    body = {"model": "demo", "training_file": uploaded(fine_tunes), **changes}
    error = await refusal(worker, "POST", body=body)
    assert error["param"] == param
    assert "word" not in error["message"]
    assert not fine_tunes.all()


def everything_in(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


async def test_a_key_that_is_not_needed_is_not_kept(
    worker: Worker, fine_tunes: FineTunes, tmp_path: Path
) -> None:
    body = {
        "model": "demo",
        "training_file": uploaded(fine_tunes),
        "wandb_config": {"api_key": "secret-word"},
    }
    await ask(worker, "POST", body=body)
    assert b"secret-word" not in everything_in(tmp_path)


FAILED = Result(status="failed", at=300, error=Error(code="a", message="No memory."))


@pytest.mark.parametrize(
    ("result", "status", "model"),
    [
        (None, "PENDING", None),
        (Result(status="succeeded", at=300, adapter="demo.a"), "SUCCESS", "demo.a"),
        (FAILED, "FAILURE", None),
        (Result(status="cancelled", at=300), "CANCELLED", None),
    ],
)
async def test_statuses_have_the_clients_words(
    worker: Worker, fine_tunes: FineTunes, result: Result | None, status: str, model: str | None
) -> None:
    fine_tune = created(fine_tunes)
    if result:
        fine_tune.end(result)
    expected = {
        "id": fine_tune.id,
        "fine_tune_id": fine_tune.id,
        "fine_tuned_model": model,
        "status": status,
    }
    assert await ask(worker, "GET", f"/{fine_tune.id}") == expected
    assert await ask(worker, "GET") == {"jobs": [expected]}


async def test_one_that_a_worker_is_at_runs(worker: Worker, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    (fine_tune.leases() / "lease-1").parent.mkdir(parents=True)
    (fine_tune.leases() / "lease-1").touch()
    assert (await ask(worker, "GET", f"/{fine_tune.id}"))["status"] == "RUNNING"


async def test_events_are_as_the_trainer_has_written_them(
    worker: Worker, fine_tunes: FineTunes
) -> None:
    fine_tune = created(fine_tunes)
    told = loss(5, 2.108, at=1689665099.67)
    tell(fine_tune, [told])
    events = (await ask(worker, "GET", f"/{fine_tune.id}/events"))["events"]
    assert [event["message"] for event in events] == ["Created", told.message]
    assert events[1] == {"timestamp": 1689665099.67, "message": told.message, "level": "info"}
    assert told.message.startswith("{'loss': 2.108, ")


async def test_one_is_cancelled_once(worker: Worker, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    assert await ask(worker, "PUT", f"/{fine_tune.id}/cancel") == {"success": True}
    assert (await ask(worker, "GET", f"/{fine_tune.id}"))["status"] == "CANCELLED"
    assert await ask(worker, "PUT", f"/{fine_tune.id}/cancel") == {"success": False}


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PUT", "/cancel"), ("GET", "/events")])
async def test_one_that_is_not_there_is_404(worker: Worker, method: str, path: str) -> None:
    assert (await refusal(worker, method, f"/ft-none{path}"))["code"] == 404


async def test_a_list_has_the_newest_first(worker: Worker, fine_tunes: FineTunes) -> None:
    ids = [created(fine_tunes, created_at=second).id for second in range(3)]
    jobs = (await ask(worker, "GET"))["jobs"]
    assert [job["id"] for job in jobs] == ids[::-1]
