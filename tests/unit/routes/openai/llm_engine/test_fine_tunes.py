"""LLM Engine's routes for fine-tunes, in the words that its client reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine
from support.fine_tunes import created, loss, tell, uploaded

from worker.fine_tunes.request import Error, Result
from worker.fine_tunes.store import FineTunes

FINE_TUNES = "/v1/llm/fine-tunes"


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    engine.model = replace(engine.model, place=tmp_path, max_lora_rank=16)
    return Caller(engine, tmp_path)


@pytest.fixture
def fine_tunes(caller: Caller) -> FineTunes:
    return FineTunes.of(caller.settings)


async def test_the_body_of_the_client_creates_one(caller: Caller, fine_tunes: FineTunes) -> None:
    # The client writes numbers as texts.
    numbers = {"epochs": "1", "lr": "0.0002", "peft_config": {"r": 8}}
    answer = await caller.post(
        FINE_TUNES,
        model="demo",
        training_file=uploaded(fine_tunes),
        validation_file=None,
        hyperparameters=numbers,
        # A key that is not needed is not written down.
        wandb_config={"api_key": "secret-word"},
        suffix="my-experiment",
    )
    (fine_tune,) = fine_tunes.all()
    run_with = {"input": {"fine_tune": {"id": fine_tune.id}}}
    assert answer == {"id": fine_tune.id, "fine_tune_id": fine_tune.id, "run_with": run_with}
    spec = fine_tune.request.spec
    assert (spec.epochs, spec.learning_rate, spec.lora.r) == (1, 2e-4, 8)
    assert (fine_tune.request.suffix, fine_tune.request.wandb) == ("my-experiment", None)
    written = [path.read_bytes() for path in caller.root.rglob("*") if path.is_file()]
    assert b"secret-word" not in b"".join(written)


# One field of each kind: unit/fine_tunes has the others.
@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": "other"}, "model"),
        ({"n_epochs": 1}, "n_epochs"),
        (
            {"hyperparameters": {"report_to": "wandb"}, "wandb_config": {"api_key": "word"}},
            "wandb_config.api_key",
        ),
    ],
)
async def test_what_is_wrong_is_refused_naming_the_field(
    caller: Caller, fine_tunes: FineTunes, changes: dict[str, Any], param: str
) -> None:
    body = {"model": "demo", "training_file": uploaded(fine_tunes), **changes}
    error = await caller.refused("POST", FINE_TUNES, **body)
    assert (error["param"], fine_tunes.all()) == (param, [])
    assert "word" not in error["message"]


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
    caller: Caller, fine_tunes: FineTunes, result: Result | None, status: str, model: str | None
) -> None:
    fine_tune = created(fine_tunes)
    if result:
        fine_tune.end(result)
    ids = {"id": fine_tune.id, "fine_tune_id": fine_tune.id}
    expected = {**ids, "fine_tuned_model": model, "status": status}
    older = created(fine_tunes, created_at=1)
    assert await caller.get(f"{FINE_TUNES}/{fine_tune.id}") == expected
    newest, oldest = (await caller.get(FINE_TUNES))["jobs"]
    assert (newest, oldest["id"]) == (expected, older.id)


async def test_one_that_a_worker_is_at_runs(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    fine_tune.leases().mkdir(parents=True)
    (fine_tune.leases() / "lease-1").touch()
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "RUNNING"


async def test_events_are_as_the_trainer_wrote_them(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    told = loss(5, 2.108, at=1689665099.67)
    tell(fine_tune, [told])
    first, second = (await caller.get(f"{FINE_TUNES}/{fine_tune.id}/events"))["events"]
    assert first["message"] == "Created"
    assert second == {"timestamp": 1689665099.67, "message": told.message, "level": "info"}
    assert told.message.startswith("{'loss': 2.108, ")


async def test_one_is_cancelled_once(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    cancel = {"route": f"{FINE_TUNES}/{fine_tune.id}/cancel", "method": "PUT"}
    assert await caller.job(**cancel) == {"success": True}
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "CANCELLED"
    assert await caller.job(**cancel) == {"success": False}
