"""OpenAI's routes for fine-tuning jobs: created, listed, described, stopped, and what they tell."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from support.batches import answered, refused
from support.engine.scripted import ScriptedEngine, replying, settings
from support.tables.batch_requests import NO_IDS
from support.told import created, eval_loss, loss, tell, uploaded

from worker.app import Worker
from worker.fine_tunes.request import Checkpoint, Error, Result
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.job.long_work import LongWork

JOBS = "/v1/fine_tuning/jobs"
CARDS = [{"id": "demo", "parent": None}, {"id": "given", "parent": "demo", "root": "given"}]


class Caller:
    """Sends jobs to a worker with a volume, which may be able to start fine-tunes."""

    def __init__(self, root: Path, engine: ScriptedEngine, *, starts: bool = True) -> None:
        self.started: list[LongWork] = []
        self._jobs = 0

        async def start(work: LongWork) -> bool:
            self.started.append(work)
            return starts

        configured = settings(FILES_PATH=str(root))
        self.worker = Worker(engine.engines, configured, start=start)
        self.fine_tunes = FineTunes.of(configured)
        self.file = uploaded(self.fine_tunes)

    async def asks(self, method: str, path: str, body: Any = None) -> Any:
        self._jobs += 1
        payload = {"route": path, "method": method, "body": body}
        return await answered(self.worker, payload, f"job-{self._jobs}")

    async def creates(self, **changes: Any) -> Any:
        return await self.asks("POST", JOBS, self.body(**changes))

    def body(self, **changes: Any) -> dict[str, Any]:
        return {"model": "demo", "training_file": self.file, **changes}

    async def refused(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return await refused(self.worker, {"route": path, "method": method, "body": body})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ScriptedEngine]:
    listing = replying(json.dumps({"object": "list", "data": CARDS}))
    with ScriptedEngine(app=listing) as scripted:
        scripted.model = replace(scripted.model, place=tmp_path, max_lora_rank=16)
        scripted.adapters = ["tuned"]
        yield scripted


@pytest.fixture
def caller(tmp_path: Path, engine: ScriptedEngine) -> Caller:
    return Caller(tmp_path, engine)


async def test_a_created_job_is_as_openais_client_reads_it_and_is_started(caller: Caller) -> None:
    shown = await caller.creates(suffix="mine", seed=7, metadata={"a": "b"})
    job = FineTuningJob.model_validate(shown)
    assert (job.status, job.model, job.training_file, job.seed) == (
        "queued",
        "demo",
        caller.file,
        7,
    )
    assert (job.fine_tuned_model, job.finished_at, job.error) == (None, None, None)
    assert (job.result_files, job.metadata) == ([], {"a": "b"})
    assert job.hyperparameters.n_epochs == 5
    assert job.method
    assert job.method.supervised
    assert caller.started == [LongWork("fine_tune", job.id)]
    assert await caller.asks("GET", f"{JOBS}/{job.id}") == shown


async def test_one_that_can_not_be_started_says_what_to_send(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    shown = await Caller(tmp_path, engine, starts=False).creates()
    assert shown["run_with"] == {"input": {"fine_tune": {"id": shown["id"]}}}


async def test_hyperparameters_are_shown_as_they_are_used(caller: Caller) -> None:
    given = {"n_epochs": "3", "batch_size": 4, "learning_rate_multiplier": 0.5}
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    job = FineTuningJob.model_validate(await caller.creates(method=method))
    shown = job.hyperparameters
    assert (shown.n_epochs, shown.batch_size, shown.learning_rate_multiplier) == (3, 4, 0.5)


@pytest.mark.parametrize(
    ("changes", "param", "status"),
    [
        ({"model": "given"}, "model", 400),
        ({"model": "tuned"}, "model", 400),
        ({"model": "other"}, "model", 400),
        ({"model": None}, "model", 400),
        ({"training_file": None}, "training_file", 400),
        ({"training_file": "file-" + "a" * 24}, "training_file", 404),
        ({"validation_file": "nothing.csv"}, "validation_file", 400),
        ({"hyperparameters": {"epoch": 1}}, "hyperparameters.epoch", 400),
        ({"hyperparameters": {"peft_config": {"r": 32}}}, "hyperparameters.peft_config.r", 400),
        ({"method": {"type": "dpo"}}, "method.type", 400),
        ({"sufix": "a"}, "sufix", 400),
    ],
)
async def test_what_is_wrong_is_refused_naming_the_field(
    caller: Caller, changes: dict[str, Any], param: str, status: int
) -> None:
    error = await caller.refused("POST", JOBS, caller.body(**changes))
    assert (error["param"], error["code"]) == (param, status)
    assert not caller.fine_tunes.all()


async def test_a_worker_without_adapters_says_which_setting_it_lacks(
    caller: Caller, engine: ScriptedEngine
) -> None:
    engine.model = replace(engine.model, max_lora_rank=None)
    error = await caller.refused("POST", JOBS, caller.body())
    assert "ENABLE_LORA=1" in error["message"]


async def test_a_worker_that_trains_nothing_says_what_does(
    caller: Caller, engine: ScriptedEngine
) -> None:
    # On a GPU it trains only where that is asked for.
    engine.model = replace(engine.model, device="cuda")
    error = await caller.refused("POST", JOBS, caller.body())
    assert error["code"] == 400
    assert "--train" in error["message"]
    assert "FINE_TUNE=" in error["message"]
    assert not caller.fine_tunes.all()


async def test_jobs_are_created_and_described_while_the_engine_makes_room_for_one(
    caller: Caller, engine: ScriptedEngine
) -> None:
    engine.mark_dead()
    job = await caller.creates()
    assert (await caller.asks("GET", JOBS))["data"] == [job]


async def test_jobs_are_listed_newest_first_a_page_at_a_time(caller: Caller) -> None:
    ids = [created(caller.fine_tunes, created_at=second).id for second in range(5)]
    first = await caller.asks("GET", f"{JOBS}?limit=2")
    assert [job["id"] for job in first["data"]] == [ids[4], ids[3]]
    assert first["has_more"]
    rest = await caller.asks("GET", f"{JOBS}?limit=3&after={ids[3]}")
    assert [job["id"] for job in rest["data"]] == [ids[2], ids[1], ids[0]]
    assert not rest["has_more"]


async def test_jobs_are_listed_by_their_metadata(caller: Caller) -> None:
    wanted = created(caller.fine_tunes, metadata={"team": "a", "x": "y"})
    created(caller.fine_tunes, metadata={"team": "b"})
    created(caller.fine_tunes)
    found = await caller.asks("GET", f"{JOBS}?metadata[team]=a")
    assert [job["id"] for job in found["data"]] == [wanted.id]


async def test_a_job_is_cancelled_and_can_then_be_stopped_no_more(caller: Caller) -> None:
    place = f"{JOBS}/{(await caller.creates())['id']}"
    shown = await caller.asks("POST", f"{place}/cancel")
    assert FineTuningJob.model_validate(shown).status == "cancelled"
    assert shown["finished_at"]
    for verb in ("cancel", "pause", "resume"):
        assert (await caller.refused("POST", f"{place}/{verb}"))["code"] == 409


async def test_a_job_is_paused_and_started_again_when_it_is_resumed(caller: Caller) -> None:
    shown = await caller.creates()
    place = f"{JOBS}/{shown['id']}"
    assert (await caller.asks("POST", f"{place}/pause"))["status"] == "paused"
    assert len(caller.started) == 1
    assert (await caller.asks("POST", f"{place}/resume"))["status"] == "queued"
    assert caller.started == [LongWork("fine_tune", shown["id"])] * 2


async def test_the_events_of_a_job_are_listed_newest_first_a_page_at_a_time(
    caller: Caller,
) -> None:
    fine_tune = created(caller.fine_tunes)
    tell(fine_tune, [loss(5, 3.25), eval_loss(5, 2.5)])
    place = f"{JOBS}/{fine_tune.id}/events"
    page = await caller.asks("GET", f"{place}?limit=2")
    newest, before = map(FineTuningJobEvent.model_validate, page["data"])
    assert (newest.type, newest.message) == ("metrics", "Step 5: validation loss=2.5")
    assert before.message == "Step 5: training loss=3.25"
    assert isinstance(before.data, dict)
    assert (before.data["step"], before.data["train_loss"]) == (5, 3.25)
    assert page["has_more"]
    rest = await caller.asks("GET", f"{place}?after={before.id}")
    assert [one["message"] for one in rest["data"]] == ["Created"]
    assert rest["data"][0]["type"] == "message"


async def test_a_job_that_succeeded_has_an_adapter_files_and_checkpoints(caller: Caller) -> None:
    fine_tune = created(caller.fine_tunes)
    tell(fine_tune, [loss(5, 3), eval_loss(5, 2.5), loss(10, 1), eval_loss(10, 2)])
    place = f"{JOBS}/{fine_tune.id}"
    assert (await caller.asks("GET", f"{place}/checkpoints"))["data"] == []
    names = {5: "demo.a.ckpt-5", 10: "demo.a"}
    fine_tune.end(
        Result(
            status="succeeded",
            at=300,
            adapter="demo.a",
            checkpoints=(
                *(Checkpoint(step=step, name=name) for step, name in names.items()),
                Checkpoint(step=15),
            ),
            result_file_ids=("file-a",),
            trained_tokens=1000,
        )
    )
    job = FineTuningJob.model_validate(await caller.asks("GET", place))
    assert (job.status, job.fine_tuned_model, job.finished_at) == ("succeeded", "demo.a", 300)
    assert (job.result_files, job.trained_tokens) == (["file-a"], 1000)
    listed = await caller.asks("GET", f"{place}/checkpoints")
    found = [FineTuningJobCheckpoint.model_validate(one) for one in listed["data"]]
    shown = [(one.step_number, one.fine_tuned_model_checkpoint) for one in found]
    assert shown == [(10, "demo.a"), (5, "demo.a.ckpt-5")]
    assert (found[1].metrics.train_loss, found[1].metrics.full_valid_loss) == (3, 2.5)
    assert {one.fine_tuning_job_id for one in found} == {fine_tune.id}


async def test_a_job_that_failed_says_why(caller: Caller) -> None:
    fine_tune = created(caller.fine_tunes)
    error = Error(code="invalid_training_file", message="Line 3 is empty.", param="training_file")
    fine_tune.end(Result(status="failed", at=300, error=error))
    job = FineTuningJob.model_validate(await caller.asks("GET", f"{JOBS}/{fine_tune.id}"))
    assert job.status == "failed"
    assert job.error
    assert job.error.model_dump() == error.model_dump()


@pytest.mark.parametrize("path", ["", "/cancel", "/pause", "/resume", "/events", "/checkpoints"])
async def test_nothing_is_known_of_one_that_is_not_there(caller: Caller, path: str) -> None:
    method = "POST" if path in ("/cancel", "/pause", "/resume") else "GET"
    error = await caller.refused(method, f"{JOBS}/{PREFIX}{'a' * 24}{path}")
    assert (error["code"], error["param"]) == (404, "fine_tuning_job_id")


@pytest.mark.parametrize("id", [id for id in NO_IDS if "/" not in id and id])
async def test_a_text_that_is_no_id_names_no_job(caller: Caller, id: str) -> None:
    error = await caller.refused("GET", f"{JOBS}/{id.replace('{prefix}', PREFIX)}")
    assert error["code"] in (400, 404)


async def test_the_file_of_a_job_that_has_not_ended_can_not_be_deleted(caller: Caller) -> None:
    job = await caller.creates()
    assert (await caller.refused("DELETE", f"/v1/files/{caller.file}"))["code"] == 409
    await caller.asks("POST", f"{JOBS}/{job['id']}/cancel")
    assert (await caller.asks("DELETE", f"/v1/files/{caller.file}"))["deleted"]
