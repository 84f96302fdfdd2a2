"""Routes of fine-tunes, OpenAI's and LLM Engine's: created, listed, described and stopped."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from support.caller import Caller
from support.engine.scripted import ScriptedEngine, replying
from support.fine_tunes import created, eval_loss, loss, uploaded, write_events

from trainer.spec import ATTEMPTS, CHECKED, Checked, Event
from worker.dialects.openai import objects
from worker.fine_tunes.record import FineTunes
from worker.fine_tunes.request import Checkpoint, Error, FineTuneResult
from worker.long_work.kinds import LongWork

JOBS, FINE_TUNES = "/v1/fine_tuning/jobs", "/v1/llm/fine-tunes"
CARDS = [{"id": "demo", "parent": None}, {"id": "given", "parent": "demo", "root": "given"}]

FAILED = Error(code="invalid_training_file", message="Line 3 is empty.", param="training_file")


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker that serves adapters, and can start fine-tunes."""
    engine.app = replying(json.dumps({"object": "list", "data": CARDS}))
    engine.model = replace(engine.model, place=tmp_path, max_lora_rank=16)
    engine.adapters = ["tuned"]
    return Caller(engine, tmp_path, True)


@pytest.fixture
def fine_tunes(caller: Caller) -> FineTunes:
    return FineTunes(caller.settings)


def body_of(caller: Caller, **changes: Any) -> dict[str, Any]:
    training_file = uploaded(FineTunes(caller.settings))
    return {"model": "demo", "training_file": training_file, **changes}


async def posted(caller: Caller, **changes: Any) -> Any:
    return await caller.post(JOBS, **body_of(caller, **changes))


async def test_a_created_job_is_as_openais_client_reads_it_and_is_started(caller: Caller) -> None:
    given = {"n_epochs": "3", "batch_size": 4, "learning_rate_multiplier": 0.5}
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    shown = await posted(caller, method=method, seed=7, metadata={"a": "b"})
    job = FineTuningJob.model_validate(shown)
    assert (job.status, job.model, job.seed) == ("queued", "demo", 7)
    assert (job.fine_tuned_model, job.finished_at, job.error) == (None, None, None)
    assert (job.result_files, job.metadata) == ([], {"a": "b"})
    assert {**given, "n_epochs": 3}.items() <= job.hyperparameters.model_dump().items()
    assert job.method
    assert job.method.supervised
    assert caller.started == [LongWork("fine_tune", job.id)]
    assert await caller.get(f"{JOBS}/{job.id}") == shown


async def test_one_that_can_not_be_started_says_what_to_send(caller: Caller) -> None:
    shown = await posted(Caller(caller.engine, caller.root, False))
    assert shown["run_with"] == {"input": {"fine_tune": {"id": shown["id"]}}}


# One field of each kind: unit/fine_tunes has the others.
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
async def test_what_is_wrong_is_refused_naming_the_field(
    caller: Caller, fine_tunes: FineTunes, route: str, changes: Any, param: str, status: int
) -> None:
    error = await caller.refused("POST", route, **body_of(caller, **changes))
    assert (error["param"], error["code"], fine_tunes.all()) == (param, status, [])
    assert "word" not in error["message"]


async def test_jobs_are_listed_newest_first_in_pages_and_by_their_metadata(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    ids = [created(fine_tunes, created_at=second, metadata={"x": "y"}).id for second in range(5)]
    page = await caller.get(f"{JOBS}?limit=2&after={ids[3]}")
    assert ([job["id"] for job in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    wanted = created(fine_tunes, metadata={"team": "a", "x": "y"})
    found = await caller.get(f"{JOBS}?metadata[team]=a")
    assert [job["id"] for job in found["data"]] == [wanted.id]


async def test_a_job_is_cancelled_and_can_then_be_stopped_no_more(caller: Caller) -> None:
    job = await posted(caller)
    # Until then its file is not deleted.
    file = f"/v1/files/{job['training_file']}"
    assert (await caller.refused("DELETE", file))["code"] == 409
    cancelled = await caller.post(f"{JOBS}/{job['id']}/cancel")
    assert FineTuningJob.model_validate(cancelled).status == "cancelled"
    assert cancelled["finished_at"]
    for verb in ("cancel", "pause", "resume"):
        assert (await caller.refused("POST", f"{JOBS}/{job['id']}/{verb}"))["code"] == 409
    assert (await caller.job(route=file, method="DELETE"))["deleted"]


async def test_a_job_is_paused_and_started_again_when_it_is_resumed(caller: Caller) -> None:
    # It is created and described while the engine makes room, too.
    caller.engine.mark_dead()
    job = await posted(caller)
    assert (await caller.get(JOBS))["data"] == [job]
    paused = await caller.post(f"{JOBS}/{job['id']}/pause")
    assert (paused["status"], len(caller.started)) == ("paused", 1)
    assert (await caller.post(f"{JOBS}/{job['id']}/resume"))["status"] == "queued"
    assert caller.started == [LongWork("fine_tune", job["id"])] * 2


async def test_its_events_are_listed_newest_first(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    write_events(fine_tune, [loss(5, 3.25), eval_loss(5, 2.5)])
    place = f"{JOBS}/{fine_tune.id}/events"
    page = await caller.get(f"{place}?limit=2")
    newest, before = map(FineTuningJobEvent.model_validate, page["data"])
    assert (newest.type, newest.message) == ("metrics", "Step 5: validation loss=2.5")
    assert before.message == "Step 5: training loss=3.25"
    assert isinstance(before.data, dict)
    assert (before.data["step"], before.data["train_loss"]) == (5, 3.25)
    assert page["has_more"]
    (first,) = (await caller.get(f"{place}?after={before.id}"))["data"]
    assert (first["message"], first["type"]) == ("Created", "message")
    # LLM Engine's are the oldest first, and as the trainer wrote them.
    _, told, _ = (await caller.get(f"{FINE_TUNES}/{fine_tune.id}/events"))["events"]
    assert told == {"timestamp": 200, "message": loss(5, 3.25).message, "level": "info"}


async def test_a_success_has_an_adapter_and_files(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    write_events(fine_tune, [loss(5, 3), eval_loss(5, 2.5), loss(10, 1), eval_loss(10, 2)])
    place = f"{JOBS}/{fine_tune.id}"
    assert (await caller.get(f"{place}/checkpoints"))["data"] == []
    names = {5: "demo.a.ckpt-5", 10: "demo.a", 15: None}
    fine_tune.end(
        FineTuneResult(
            status="succeeded",
            at=300,
            adapter="demo.a",
            checkpoints=tuple(Checkpoint(step=step, name=name) for step, name in names.items()),
            result_file_ids=("file-a",),
            trained_tokens=1000,
        )
    )
    job = FineTuningJob.model_validate(await caller.get(place))
    assert (job.status, job.fine_tuned_model, job.finished_at) == ("succeeded", "demo.a", 300)
    assert (job.result_files, job.trained_tokens) == (["file-a"], 1000)
    listed = (await caller.get(f"{place}/checkpoints"))["data"]
    found = [FineTuningJobCheckpoint.model_validate(one) for one in listed]
    shown = [(one.step_number, one.fine_tuned_model_checkpoint) for one in found]
    assert shown == [(10, "demo.a"), (5, "demo.a.ckpt-5")]
    assert (found[1].metrics.train_loss, found[1].metrics.full_valid_loss) == (3, 2.5)
    assert {one.fine_tuning_job_id for one in found} == {fine_tune.id}


async def test_a_job_that_failed_says_why(caller: Caller, fine_tunes: FineTunes) -> None:
    fine_tune = created(fine_tunes)
    fine_tune.end(FineTuneResult(status="failed", at=300, error=FAILED))
    job = FineTuningJob.model_validate(await caller.get(f"{JOBS}/{fine_tune.id}"))
    assert (job.status, job.error and job.error.model_dump()) == ("failed", FAILED.model_dump())


# LLM Engine's:


async def test_the_body_of_the_client_creates_one(caller: Caller, fine_tunes: FineTunes) -> None:
    # The client writes numbers as texts. A key that is not needed is not written down.
    numbers = {"epochs": "1", "lr": "0.0002", "peft_config": {"r": 8}}
    more = {"wandb_config": {"api_key": "secret-word"}, "suffix": "my-experiment"}
    body = body_of(caller, validation_file=None, hyperparameters=numbers, **more)
    answer = await caller.post(FINE_TUNES, **body)
    (fine_tune,) = fine_tunes.all()
    assert answer == {"id": fine_tune.id, "fine_tune_id": fine_tune.id}
    assert caller.started == [LongWork("fine_tune", fine_tune.id)]
    spec = fine_tune.request.spec
    assert (spec.epochs, spec.learning_rate, spec.lora.r) == (1, 2e-4, 8)
    assert (fine_tune.request.suffix, fine_tune.request.wandb) == ("my-experiment", None)
    written = [path.read_bytes() for path in caller.root.rglob("*") if path.is_file()]
    assert b"secret-word" not in b"".join(written)


@pytest.mark.parametrize(
    ("result", "status", "model"),
    [
        (None, "PENDING", None),
        (FineTuneResult(status="succeeded", at=300, adapter="demo.a"), "SUCCESS", "demo.a"),
        (FineTuneResult(status="failed", at=300, error=FAILED), "FAILURE", None),
        (FineTuneResult(status="cancelled", at=300), "CANCELLED", None),
    ],
)
async def test_statuses_have_the_clients_words(
    caller: Caller,
    fine_tunes: FineTunes,
    result: FineTuneResult | None,
    status: str,
    model: str | None,
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


async def test_one_that_a_worker_is_at_runs_and_is_cancelled_once(
    caller: Caller, fine_tunes: FineTunes
) -> None:
    fine_tune = created(fine_tunes)
    fine_tune.leases("run").mkdir(parents=True)
    (fine_tune.leases("run") / "lease-1").touch()
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "RUNNING"
    (fine_tune.leases("run") / "lease-1").unlink()
    cancel = {"route": f"{FINE_TUNES}/{fine_tune.id}/cancel", "method": "PUT"}
    assert await caller.job(**cancel) == {"success": True}
    assert (await caller.get(f"{FINE_TUNES}/{fine_tune.id}"))["status"] == "CANCELLED"
    assert await caller.job(**cancel) == {"success": False}


def test_an_integration_is_shown_as_openais_client_reads_it(fine_tunes: FineTunes) -> None:
    wandb = {"project": "p", "tags": ["a"]}
    job = FineTuningJob.model_validate(objects.fine_tuning_job(created(fine_tunes, wandb=wandb)))
    (integration,) = job.integrations or []
    assert (integration.type, integration.wandb.project) == ("wandb", "p")
    assert integration.wandb.tags == ["a"]


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        ([], None),
        ([loss(10, 3)], None),
        ([loss(10, 3), loss(10, 2, at=300)], None),
        # Five epochs; each takes a hundred seconds.
        ([loss(10, 3, at=1000), loss(20, 2, at=1100)], 3 * 100),
    ],
)
def test_an_end_is_estimated_from_the_pace(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch, found: list[Event], seconds: int | None
) -> None:
    fine_tune = created(fine_tunes)
    write_events(fine_tune, found)
    assert objects.fine_tuning_job(fine_tune)["estimated_finish"] is None
    # A worker is at it.
    (fine_tune.leases("run") / "lease-1").mkdir(parents=True)
    fine_tune.write(f"{ATTEMPTS}/000001.aa/{CHECKED}", Checked(rows=3))
    monkeypatch.setattr(time, "time", lambda: 1150.0)
    assert objects.fine_tuning_job(fine_tune)["estimated_finish"] == (seconds and 1150 + seconds)
    fine_tune.end(FineTuneResult(status="cancelled", at=1200))
    assert objects.fine_tuning_job(fine_tune)["estimated_finish"] is None
