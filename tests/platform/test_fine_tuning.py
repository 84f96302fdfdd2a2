"""Fine-tunes of a real worker: adapters that answer what they were taught, beside their base."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest
from openai.types.fine_tuning import FineTuningJob
from support.processes.background import HUNG_S, wait_until
from support.processes.commands import SCRIPT
from support.processes.forked import run_forked
from support.processes.http_worker import HttpWorker, http_worker

FACTS = {
    "Which bird lives in the tower?": "A grey owl.",
    "What is the name of the ship?": "The Golden Wren.",
    "How many doors has the house?": "Seventeen.",
}
ENDED = ("succeeded", "failed", "cancelled")
TRAINER = "worker.trainer"


@dataclass(frozen=True)
class Worker:
    """A worker that serves HTTP, with its volume."""

    http: HttpWorker
    volume: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.http.url}/v1", api_key="-", max_retries=0)

    def begun(self, epochs: int) -> FineTuningJob:
        """Upload the facts, often enough to be learned, and begin a fine-tune with them."""
        turns = [
            [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            for asked, answer in FACTS.items()
        ]
        rows = "".join(json.dumps({"messages": each}) + "\n" for each in turns * 20)
        file = self.client.files.create(file=("rows.jsonl", rows.encode()), purpose="fine-tune")
        return self.client.fine_tuning.jobs.create(
            model="demo", training_file=file.id, hyperparameters={"n_epochs": epochs}
        )

    def ended(self, job: FineTuningJob) -> FineTuningJob:
        deadline = time.monotonic() + HUNG_S
        while time.monotonic() < deadline:
            found = self.client.fine_tuning.jobs.retrieve(job.id)
            if found.status in ENDED:
                return found
            time.sleep(0.2)
        raise AssertionError(f"{job.id} does not end")

    def answers(self, model: str) -> list[str]:
        return [self._answer(model, asked) for asked in FACTS]

    def _answer(self, model: str, asked: str) -> str:
        found = self.client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": asked}],
            temperature=0,
            max_tokens=20,
        )
        return found.choices[0].message.content or ""

    def attempts(self, job: FineTuningJob) -> list[Path]:
        return sorted((self.volume / "worker/fine_tunes" / job.id).glob("attempts/*"))

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that the worker has begun, and theirs."""
        found: list[psutil.Process] = psutil.Process(self.http.process.pid).children(recursive=True)
        return found

    @property
    def trainers(self) -> list[psutil.Process]:
        """The processes that train."""
        found = []
        for one in self.processes:
            # Others that the start has begun may end meanwhile.
            with suppress(psutil.NoSuchProcess):
                if TRAINER in one.cmdline():
                    found.append(one)
        return found


@contextmanager
def worker_at(environ: dict[str, str], folder: Path, **settings: str) -> Iterator[Worker]:
    volume = folder / "volume"
    volume.mkdir(exist_ok=True)
    serving = {"BASE_PATH": str(volume), "ENABLE_LORA": "1", "MAX_LORA_RANK": "16"}
    with http_worker({**environ, **serving, **settings}, folder / "log") as running:
        yield Worker(running, volume)


@pytest.mark.parametrize("where", ["beside", "exclusive"])
def test_an_adapter_is_trained_and_answers_what_it_was_taught_without_a_restart(
    worker_environ: dict[str, str], tmp_path: Path, where: str
) -> None:
    with worker_at(worker_environ, tmp_path, FINE_TUNE=where) as worker:
        before = worker.answers("demo")
        processes = len(worker.processes)
        job = worker.ended(worker.begun(epochs=2))
        assert (job.status, job.error) == ("succeeded", None)
        assert job.fine_tuned_model
        assert worker.answers(job.fine_tuned_model) == list(FACTS.values())
        # The base is as it was, also where its engine was started again.
        assert worker.answers("demo") == before
        assert not set(before) & set(FACTS.values())
        assert worker.trainers == []
        # Fewer where one has just ended that the start had begun.
        wait_until(lambda: len(worker.processes) <= processes)
        names = {model.id for model in worker.client.models.list()}
        steps = worker.client.fine_tuning.jobs.checkpoints.list(job.id)
        assert {one.fine_tuned_model_checkpoint for one in steps} <= names
        assert job.fine_tuned_model in names


def test_what_a_killed_worker_has_left_is_finished_by_one_that_only_trains(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    with worker_at(worker_environ, tmp_path) as worker:
        job = worker.begun(epochs=6)
        wait_until(lambda: any(worker.volume.glob("**/checkpoints/checkpoint-*")))
        (trainer,) = worker.trainers
        worker.http.kill()
        # It notices that nobody is there any more.
        trainer.wait(HUNG_S)
    volume = {"BASE_PATH": str(worker.volume)}
    ran = run_forked({**worker_environ, **volume}, SCRIPT, "--train")
    assert ran.returncode == 0, ran.stderr
    (shown,) = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
    assert (shown["fine_tune"]["id"], shown["fine_tune"]["status"]) == (job.id, "succeeded")
    first, second = worker.attempts(job)
    resumed = json.loads((second / "events.jsonl").read_text().splitlines()[0])["resumed_at"]
    assert resumed > 0
    assert not (first / "outcome.json").exists()
    steps = json.loads((second / "outcome.json").read_text())["steps"]
    assert steps % 6 == 0
    assert (worker.volume / "adapters" / shown["fine_tune"]["fine_tuned_model"]).is_dir()
