"""Routes of OpenAI and LLM Engine that create, list, describe and stop fine-tunes."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from support.caller import Caller
from support.engine.scripted import ScriptedEngine, static_app
from support.fine_tunes import (
    create_fine_tune,
    eval_loss_event,
    loss_event,
    upload_file,
    write_events,
)
from support.volume import all_records

from worker.dialects.llm_engine.fine_tunes import DEFAULT_PROJECT, LLMEngineFineTuneRequest
from worker.dialects.openai.fine_tuning import job_object
from worker.errors import InvalidInput
from worker.fine_tunes.record import EpochCheckpoint, FailureReason, FineTuneResult, FineTunes
from worker.fine_tunes.spec import ATTEMPTS_DIR, OUTCOME_FILE, Event, Outcome
from worker.long_work.records import WorkReference

JOBS, FINE_TUNES = "/v1/fine_tuning/jobs", "/v1/llm/fine-tunes"
CARDS = [{"id": "demo", "parent": None}, {"id": "given", "parent": "demo", "root": "given"}]

FAILED = FailureReason(
    code="invalid_training_file", message="Line 3 is empty.", param="training_file"
)


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker that serves adapters and can start fine-tunes."""
    engine.app = static_app(json.dumps({"object": "list", "data": CARDS}))
    engine.model = replace(engine.model, directory=tmp_path, max_lora_rank=16)
    engine.adapters = ["tuned"]
    return Caller(engine, tmp_path, True)


@pytest.fixture
def fine_tunes(caller: Caller) -> FineTunes:
    return FineTunes(caller.settings)


def make_body(caller: Caller, **changes: Any) -> dict[str, Any]:
    training_file = upload_file(FineTunes(caller.settings))
    return {"model": "demo", "training_file": training_file, **changes}


async def create_job(caller: Caller, **changes: Any) -> Any:
    return await caller.post(JOBS, **make_body(caller, **changes))


async def test_a_created_job_is_started_and_openais_client_can_read_it(caller: Caller) -> None:
    hyperparameters = {"n_epochs": "3", "batch_size": 4, "learning_rate_multiplier": 0.5}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    response = await create_job(caller, method=method, seed=7, metadata={"a": "b"})
    job = FineTuningJob.model_validate(response)
    assert (job.status, job.model, job.seed) == ("queued", "demo", 7)
    assert (job.fine_tuned_model, job.finished_at, job.error) == (None, None, None)
    assert (job.result_files, job.metadata) == ([], {"a": "b"})
    assert {**hyperparameters, "n_epochs": 3}.items() <= job.hyperparameters.model_dump().items()
    assert job.method
    assert job.method.supervised
    assert caller.started_work == [WorkReference("fine_tune", job.id)]
    assert await caller.get(f"{JOBS}/{job.id}") == response


async def test_a_job_that_the_worker_cannot_start_names_the_job_to_send(caller: Caller) -> None:
    response = await create_job(Caller(caller.engine, caller.root, False))
    assert response["run_with"] == {"input": {"fine_tune": {"id": response["id"]}}}


# One field of each kind; tests/unit/fine_tunes covers the others.
WITH_KEY = {"hyperparameters": {"report_to": "wandb"}, "wandb_config": {"api_key": "word"}}


@pytest.mark.parametrize(
    ("route", "changes", "param", "status"),
    [
        *((JOBS, {"model": name}, "model", 400) for name in ("given", "tuned", None)),
        (JOBS, {"training_file": "file-" + "a" * 24}, "training_file", 404),
        (JOBS, {"validation_file": "nothing.csv"}, "validation_file", 400),
        (JOBS, {"sufix": "a"}, "sufix", 400),
        (FINE_TUNES, {"model": "other"}, "model", 400),
        (FINE_TUNES, {"n_epochs": 1}, "n_epochs", 400),
        (FINE_TUNES, WITH_KEY, "wandb_config.api_key", 400),
    ],
)
async def test_an_invalid_fine_tune_is_refused_with_the_field(
    caller: Caller, fine_tunes: FineTunes, route: str, changes: Any, param: str, status: int
) -> None:
    error = await caller.request_error("POST", route, **make_body(caller, **changes))
    assert (error["param"], error["code"], all_records(fine_tunes)) == (param, status, [])
    assert "word" not in error["message"]


async def test_jobs_are_listed_newest_first_in_pages_and_filtered_by_metadata(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    ids = [
        create_fine_tune(fine_tunes, created_at=second, metadata={"x": "y"}).id
        for second in range(5)
    ]
    page = await caller.get(f"{JOBS}?limit=2&after={ids[3]}")
    assert ([job["id"] for job in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    matching_job = create_fine_tune(fine_tunes, metadata={"team": "a", "x": "y"})
    page = await caller.get(f"{JOBS}?metadata[team]=a")
    assert [job["id"] for job in page["data"]] == [matching_job.id]


async def test_a_cancelled_job_cannot_be_cancelled_paused_or_resumed(caller: Caller) -> None:
    job = await create_job(caller)
    # The file of an unfinished job can't be deleted.
    file = f"/v1/files/{job['training_file']}"
    assert (await caller.request_error("DELETE", file))["code"] == 409
    cancelled = await caller.post(f"{JOBS}/{job['id']}/cancel")
    assert FineTuningJob.model_validate(cancelled).status == "cancelled"
    assert cancelled["finished_at"]
    for verb in ("cancel", "pause", "resume"):
        assert (await caller.request_error("POST", f"{JOBS}/{job['id']}/{verb}"))["code"] == 409
    assert (await caller.run_job(route=file, method="DELETE"))["deleted"]


async def test_a_paused_job_is_started_again_when_it_is_resumed(caller: Caller) -> None:
    # Creating and describing a job needs no running engine.
    caller.engine.mark_dead()
    job = await create_job(caller)
    assert (await caller.get(JOBS))["data"] == [job]
    paused = await caller.post(f"{JOBS}/{job['id']}/pause")
    assert (paused["status"], len(caller.started_work)) == ("paused", 1)
    assert (await caller.post(f"{JOBS}/{job['id']}/resume"))["status"] == "queued"
    assert caller.started_work == [WorkReference("fine_tune", job["id"])] * 2


async def test_the_events_of_a_job_are_listed_newest_first(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    write_events(fine_tune, [loss_event(5, 3.25), eval_loss_event(5, 2.5)])
    route = f"{JOBS}/{fine_tune.id}/events"
    page = await caller.get(f"{route}?limit=2")
    newest, previous = map(FineTuningJobEvent.model_validate, page["data"])
    assert (newest.type, newest.message) == ("metrics", "Step 5: validation loss=2.5")
    assert previous.message == "Step 5: training loss=3.25"
    assert isinstance(previous.data, dict)
    assert (previous.data["step"], previous.data["train_loss"]) == (5, 3.25)
    assert page["has_more"]
    (first,) = (await caller.get(f"{route}?after={previous.id}"))["data"]
    assert (first["message"], first["type"]) == ("Created", "message")
    # LLM Engine's route lists the oldest event first, as the trainer wrote it.
    _, event, _ = (await caller.get(f"{FINE_TUNES}/{fine_tune.id}/events"))["events"]
    assert event == {"timestamp": 200, "message": loss_event(5, 3.25).message, "level": "info"}


async def test_a_succeeded_job_has_an_adapter_checkpoints_and_result_files(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    write_events(
        fine_tune,
        [loss_event(5, 3), eval_loss_event(5, 2.5), loss_event(10, 1), eval_loss_event(10, 2)],
    )
    route = f"{JOBS}/{fine_tune.id}"
    assert (await caller.get(f"{route}/checkpoints"))["data"] == []
    names = {5: "demo.a.ckpt-5", 10: "demo.a", 15: None}
    fine_tune.end(
        FineTuneResult(
            status="succeeded",
            at=300,
            adapter="demo.a",
            checkpoints=tuple(
                EpochCheckpoint(step=step, name=name) for step, name in names.items()
            ),
            result_file_ids=("file-a",),
            trained_tokens=1000,
        )
    )
    job = FineTuningJob.model_validate(await caller.get(route))
    assert (job.status, job.fine_tuned_model, job.finished_at) == ("succeeded", "demo.a", 300)
    assert (job.result_files, job.trained_tokens) == (["file-a"], 1000)
    data = (await caller.get(f"{route}/checkpoints"))["data"]
    checkpoints = [FineTuningJobCheckpoint.model_validate(checkpoint) for checkpoint in data]
    step_names = [
        (checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint)
        for checkpoint in checkpoints
    ]
    assert step_names == [(10, "demo.a"), (5, "demo.a.ckpt-5")]
    assert (checkpoints[1].metrics.train_loss, checkpoints[1].metrics.full_valid_loss) == (3, 2.5)
    assert {checkpoint.fine_tuning_job_id for checkpoint in checkpoints} == {fine_tune.id}


async def test_a_failed_job_has_its_error(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    fine_tune.end(FineTuneResult(status="failed", at=300, error=FAILED))
    job = FineTuningJob.model_validate(await caller.get(f"{JOBS}/{fine_tune.id}"))
    assert (job.status, job.error and job.error.model_dump()) == ("failed", FAILED.model_dump())


# LLM Engine's routes:


async def test_the_body_of_llm_engines_client_creates_a_fine_tune(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    # The client sends numbers as strings. An API key that is not needed must not be stored.
    numbers = {"epochs": "1", "lr": "0.0002", "peft_config": {"r": 8}}
    more = {"wandb_config": {"api_key": "secret-word"}, "suffix": "my-experiment"}
    body = make_body(caller, validation_file=None, hyperparameters=numbers, **more)
    response = await caller.post(FINE_TUNES, **body)
    (fine_tune,) = all_records(fine_tunes)
    assert response == {"id": fine_tune.id, "fine_tune_id": fine_tune.id}
    assert caller.started_work == [WorkReference("fine_tune", fine_tune.id)]
    spec = fine_tune.request.spec
    assert (spec.epochs, spec.learning_rate, spec.lora.r) == (1, 2e-4, 8)
    assert (fine_tune.request.suffix, fine_tune.request.wandb) == ("my-experiment", None)
    contents = [path.read_bytes() for path in caller.root.rglob("*") if path.is_file()]
    assert b"secret-word" not in b"".join(contents)


@pytest.mark.parametrize(
    ("report_to", "config", "wandb"),
    [
        ("wandb", {"project": "p", "name": "n"}, {"project": "p", "name": "n"}),
        ("wandb", None, {"project": DEFAULT_PROJECT}),
        (None, {"project": "p"}, None),
        ("none", {"project": "p"}, None),
    ],
)
def test_metrics_are_reported_to_wandb_if_report_to_names_it(
    report_to: str | None, config: dict[str, str] | None, wandb: dict[str, str] | None
) -> None:
    hyperparameters = {"epochs": "2", "report_to": report_to}
    body = {"model": "demo", "training_file": "file-a", "hyperparameters": hyperparameters}
    request = LLMEngineFineTuneRequest.from_body({**body, "wandb_config": config}).as_openai_request
    assert request.wandb_options == wandb
    assert request.raw_hyperparameters["epochs"] == "2"


@pytest.mark.parametrize("key", ["api_key", "base_url"])
def test_a_callers_wandb_key_or_server_is_refused(key: str) -> None:
    body = {"model": "demo", "training_file": "a", "hyperparameters": {"report_to": "wandb"}}
    with pytest.raises(InvalidInput) as caught:
        _ = LLMEngineFineTuneRequest.from_body(
            {**body, "wandb_config": {key: "secret-word"}}
        ).as_openai_request
    assert caught.value.param == f"wandb_config.{key}"
    assert "secret-word" not in caught.value.message


@pytest.mark.parametrize(
    ("result", "status", "model"),
    [
        (None, "PENDING", None),
        (FineTuneResult(status="succeeded", at=300, adapter="demo.a"), "SUCCESS", "demo.a"),
        (FineTuneResult(status="failed", at=300, error=FAILED), "FAILURE", None),
        (FineTuneResult(status="cancelled", at=300), "CANCELLED", None),
    ],
)
async def test_fine_tunes_are_described_with_llm_engines_statuses(
    caller: Caller,
    fine_tunes: FineTunes,
    result: FineTuneResult | None,
    status: str,
    model: str | None,
) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    if result:
        fine_tune.end(result)
    ids = {"id": fine_tune.id, "fine_tune_id": fine_tune.id}
    run_state = None if result else "waiting"
    expected = {**ids, "fine_tuned_model": model, "status": status, "run_state": run_state}
    older = create_fine_tune(fine_tunes, created_at=1)
    assert await caller.get(f"{FINE_TUNES}/{fine_tune.id}") == expected
    newest, oldest = (await caller.get(FINE_TUNES))["jobs"]
    assert (newest, oldest["id"]) == (expected, older.id)


async def test_a_fine_tune_with_a_lease_is_running_and_is_cancelled_once(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    fine_tune.lease_directory("run").mkdir(parents=True)
    (fine_tune.lease_directory("run") / "lease-1").touch()
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "RUNNING"
    (fine_tune.lease_directory("run") / "lease-1").unlink()
    cancel = {"route": f"{FINE_TUNES}/{fine_tune.id}/cancel", "method": "PUT"}
    assert await caller.run_job(**cancel) == {"success": True}
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "CANCELLED"
    assert await caller.run_job(**cancel) == {"success": False}


def test_openais_client_can_read_an_integration(fine_tunes: FineTunes) -> None:
    wandb = {"project": "p", "tags": ["a"]}
    job = FineTuningJob.model_validate(job_object(create_fine_tune(fine_tunes, wandb=wandb)))
    (integration,) = job.integrations or []
    assert (integration.type, integration.wandb.project) == ("wandb", "p")
    assert integration.wandb.tags == ["a"]


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ([], None),
        ([loss_event(10, 3)], None),
        ([loss_event(10, 3), loss_event(10, 2, at=300)], None),
        # There are five epochs, of a hundred seconds each.
        ([loss_event(10, 3, at=1000), loss_event(20, 2, at=1100)], 3 * 100),
    ],
)
def test_the_finish_is_estimated_from_the_pace_of_training(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch, events: list[Event], seconds: int | None
) -> None:
    fine_tune = create_fine_tune(fine_tunes)
    write_events(fine_tune, events)
    assert job_object(fine_tune)["estimated_finish"] is None
    # A worker runs the fine-tune.
    (fine_tune.lease_directory("run") / "lease-1").mkdir(parents=True)
    fine_tune.write_file(f"{ATTEMPTS_DIR}/000001.aa/{OUTCOME_FILE}", Outcome())
    monkeypatch.setattr(time, "time", lambda: 1150.0)
    assert job_object(fine_tune)["estimated_finish"] == (seconds and 1150 + seconds)
    fine_tune.end(FineTuneResult(status="cancelled", at=1200))
    assert job_object(fine_tune)["estimated_finish"] is None
