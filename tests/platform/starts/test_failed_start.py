"""Tests that a worker that can't start reports the reason, unless its machine is faulty."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml
from support import ROOT
from support.hub.downloads import hub_with
from support.hub.server import Hub, Repository
from support.models.configs import copy_model
from support.models.damaged import copy_damaged
from support.models.minilm import MODEL as EMBEDDER
from support.pages import table_row
from support.processes.background import HUNG_S, BackgroundProcess, start_command, wait_until
from support.processes.commands import DEMO, HOME, SCRIPT
from support.tables.planted_mistakes import FILES, SECRET

from emulator import Emulator, Options

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
# Seconds between two requests of a caller that polls.
POLL_S = 0.05


# The rows are in failed_starts.yaml. ``<folder>`` in a value is replaced with the directory that
# ``write_models`` fills.


class FailedStartRow(NamedTuple):
    """A startup that fails; ``hub``: whether the worker downloads from a hub on loopback."""

    mistake: str
    settings: dict[str, str]
    named_settings: tuple[str, ...]
    hub: bool = False


_DATA = yaml.safe_load(Path(__file__).with_name("failed_starts.yaml").read_text())


def _row(
    done: str, named: str, changes: dict[str, str | None], *, hub: bool = False
) -> FailedStartRow:
    settings = {"MODEL_NAME": "<folder>/demo", **changes}
    return FailedStartRow(
        done, {name: value for name, value in settings.items() if value}, (named,), hub
    )


def _damage_rows(setting: str, prefix: str = "") -> Iterator[FailedStartRow]:
    for damage, words in _DATA[f"damaged {prefix or 'model'}s"].items():
        name = f"{prefix} {damage}".strip()
        settings = {"MODEL_NAME": "<folder>/demo", setting: f"<folder>/{_directory_name(name)}"}
        mistake = f"{prefix}: {damage}" if prefix else damage
        yield FailedStartRow(mistake, settings, (setting, words))


def _directory_name(damage: str) -> str:
    return damage.replace(" ", "-")


MISTAKES = (
    *(_row(done, *rest) for done, rest in _DATA["mistakes"].items()),
    *_damage_rows("MODEL_NAME"),
    *_damage_rows("EMBEDDING_MODEL_NAME", "embedder"),
    *(_row(done, *rest, hub=True) for done, rest in _DATA["download mistakes"].items()),
)
FAULTS = tuple(
    FailedStartRow(done, {"MODEL_NAME": f"<folder>/{kind}", "TRUST_REMOTE_CODE": "1"}, ())
    for kind, (done, _) in _DATA["faults"].items()
)


def write_models(folder: Path) -> None:
    """Write the models and files that the rows need."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    copy_model(DEMO, folder / "demo")
    for damage in _DATA["damaged models"]:
        copy_damaged(DEMO, folder / _directory_name(damage), damage)
    for damage in _DATA["damaged embedders"]:
        copy_damaged(EMBEDDER, folder / _directory_name(f"embedder {damage}"), damage)
    for kind, (_, raised) in _DATA["faults"].items():
        code = {"AutoConfig": "configuration_foo.FooConfig"}
        copy_model(DEMO, folder / kind, auto_map=code, model_type="foo")
        raising = f"import transformers\nraise RuntimeError({raised!r})\nclass FooConfig: ...\n"
        (folder / kind / "configuration_foo.py").write_text(raising)


@dataclass(frozen=True)
class FailedStart:
    """The result of a failed startup; ``log`` is the worker's output."""

    # Errors of the jobs, by the way in which they were sent.
    errors: Mapping[str, dict[str, Any]]
    # Seconds from the worker's start to the last error.
    seconds: float
    exit_status: int
    # Jobs that the worker took, and jobs that are queued or in progress after its exit.
    jobs_taken: int
    jobs_left: int
    log: str


async def _poll_error(session: aiohttp.ClientSession, payload: Any, path: str = "status") -> Any:
    async with session.post("run", json={"input": payload}) as answer:
        job_id = (await answer.json())["id"]
    while True:
        async with session.get(f"{path}/{job_id}") as answer:
            report = await answer.json()
        if report["status"] not in ("IN_QUEUE", "IN_PROGRESS"):
            return json.loads(report["error"])["error"]
        await asyncio.sleep(POLL_S)


async def _runsync_error(session: aiohttp.ClientSession) -> Any:
    params = {"wait": "300000"}
    async with session.post("runsync", json={"input": CHAT}, params=params) as answer:
        return json.loads((await answer.json())["error"])["error"]


async def _gateway_error(session: aiohttp.ClientSession) -> Any:
    async with session.post("openai/v1/chat/completions", json={"model": "m", **CHAT}) as answer:
        body = await answer.json()
        assert answer.status == body["error"]["code"]
        return body["error"]


BATCH = {"batch": {"requests": [{"custom_id": "a", "body": CHAT}]}}
WAYS: dict[str, Callable[[aiohttp.ClientSession], Awaitable[Any]]] = {
    "/run": lambda session: _poll_error(session, CHAT),
    "/runsync": _runsync_error,
    "/stream": lambda session: _poll_error(session, {**CHAT, "stream": True}, "stream"),
    "gateway": _gateway_error,
    "batch": lambda session: _poll_error(session, BATCH),
}


async def start_failing_worker(
    environ: Mapping[str, str],
    log: Path,
    disturb: Callable[[BackgroundProcess], None] = lambda _: None,
) -> FailedStart:
    """Start a worker for which one job of each way is waiting; wait until it exits.

    ``disturb`` is called in a thread with the worker as soon as it is started.
    """
    async with (
        Emulator(Options(long_poll_s=1, gateway_timeout_s=HUNG_S)) as emulator,
        aiohttp.ClientSession(f"{emulator.url}/") as session,
    ):
        requests = {way: asyncio.ensure_future(ask(session)) for way, ask in WAYS.items()}
        while emulator.queue.health()["jobs"]["inQueue"] < len(WAYS):
            await asyncio.sleep(POLL_S)
        started_at = time.monotonic()
        with start_command(
            [SCRIPT], {**HOME, **environ, **emulator.worker_environ()}, log
        ) as worker:
            await asyncio.to_thread(disturb, worker)
            ending = asyncio.create_task(asyncio.to_thread(worker.wait_for_exit))
            answered = asyncio.gather(*requests.values())
            first: set[asyncio.Future[Any]] = {ending, answered}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            seconds = time.monotonic() - started_at
            status = await ending
        jobs = emulator.queue.health()["jobs"]
        errors = {way: task.result() for way, task in requests.items() if task.done()}
        answered.cancel()
        await asyncio.wait(requests.values())
        return FailedStart(
            errors=errors,
            seconds=seconds,
            exit_status=status,
            jobs_taken=sum(worker.jobs for worker in emulator.queue.workers.values()),
            jobs_left=jobs["inQueue"] + jobs["inProgress"],
            log=worker.output,
        )


async def start_failing_server(
    environ: Mapping[str, str], log: Path
) -> tuple[dict[str, Any] | None, float]:
    """Start a worker that serves HTTP; wait until it reports why it can't start, or exits.

    Returns:
        The error, None if the worker exited without one, and the seconds that this took.
    """
    key = {"x-api-key": environ.get("SERVE_API_KEY", "")}
    started_at, refusal = time.monotonic(), None
    command = [SCRIPT, "--serve", "--port", "0"]
    with start_command(command, {**HOME, **environ}, log) as worker:
        async with aiohttp.ClientSession(headers=key) as session:
            while refusal is None and worker.process.poll() is None:
                await asyncio.sleep(POLL_S)
                url = f"http://127.0.0.1:{worker.listening_port() or 0}/v1/chat/completions"
                # The worker does not listen yet, or has exited.
                with suppress(aiohttp.ClientConnectionError):
                    async with session.post(url, json=CHAT) as answer:
                        error = (await answer.json())["error"]
                        refusal = None if error["retryable"] else error
        seconds = time.monotonic() - started_at
        worker.process.terminate()
        await asyncio.to_thread(worker.wait_for_exit)
    return refusal, seconds


PAGE = ROOT / "docs" / "failed-starts.md"
# If this variable is set, the results of the tests are written to the page.
WRITE = "WRITE_FAILED_STARTS"
# Rows that are tested in every run; the others are slow tests.
ALWAYS = ("no model is set", "a broken GPU")
# The error of --serve or None, and the seconds until the response.
Serve = tuple[dict[str, Any] | None, float]
# Columns of the page's tables. The text above the tables is written by hand.
COLUMNS = ["mistake", "named", *WAYS, "--serve", "s", "s, --serve", "jobs left"]
FAULTS_COLUMNS = ["fault", "jobs taken", "jobs left", "status"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    made = tmp_path_factory.mktemp("models")
    write_models(made)
    return made


@pytest.fixture(scope="module", autouse=True)
def _import_vllm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import vLLM once, so that the time of the first startup does not include the import."""
    with start_command([SCRIPT, "--help"], HOME, tmp_path_factory.mktemp("import") / "log"):
        pass


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[Hub]:
    with hub_with(folder / "demo") as running:
        main = {"main": folder / "demo"}
        running.repositories["org/model"] = Repository(main)
        running.repositories["org/gated"] = Repository(main, gated=True)
        yield running


async def start_both(
    row: FailedStartRow, folder: Path, hub: Hub, base: Path
) -> tuple[FailedStart, Serve]:
    """Start a worker of the queue and a worker that serves HTTP."""
    settings = {name: text.replace("<folder>", str(folder)) for name, text in row.settings.items()}
    if row.hub:
        settings |= {"HF_ENDPOINT": hub.endpoint, "BASE_PATH": str(base)}
    settings = {"SERVE_API_KEY": SECRET, **settings}
    logs = [base.with_name(f"{base.name}-{way}.log") for way in ("queue", "serve")]
    queue, http = await asyncio.gather(
        start_failing_worker(settings, logs[0]), start_failing_server(settings, logs[1])
    )
    return queue, http


def find_problems(
    row: FailedStartRow, queue: FailedStart, http: Serve, folder: Path
) -> dict[str, list[str]]:
    """Return the problems of each way's error response to a mistake of the operator."""
    found = {}
    for way, error in {**queue.errors, "--serve": http[0]}.items():
        text = str(error.get("message")) if error else ""
        wrong = [f"{name} is not named" for name in row.named_settings if name not in text]
        if SECRET in text or str(folder) in text or str(ROOT) in text:
            wrong.append("a secret or a path")
        if error is None or (error["code"], error["retryable"]) != (503, False):
            wrong.append("no failure for good")
        if wrong:
            found[way] = [*wrong, str(error)]
    return found


def create_params(rows: Sequence[FailedStartRow]) -> list[Any]:
    """Return rows as test parameters; most of them are slow tests with two startups each."""
    return [
        pytest.param(row, id=row.mistake, marks=[] if row.mistake in ALWAYS else pytest.mark.slow)
        for row in rows
    ]


def write_row(cells: Sequence[object], columns: Sequence[str]) -> None:
    """Write a row into one of the page's tables, replacing the row with the same first cell."""
    if WRITE not in os.environ:
        return
    head = table_row(columns) + table_row("---" for _ in columns)
    above, start, below = PAGE.read_text().partition(head)
    lines, _, rest = below.partition("\n\n")
    rows = {one.split(" | ")[0]: one for one in lines.splitlines()}
    rows[f"| {cells[0]}"] = table_row(cells).rstrip()
    PAGE.write_text(above + start + "\n".join(rows.values()) + "\n" + (rest and f"\n{rest}"))


@pytest.mark.parametrize("row", create_params(MISTAKES))
async def test_every_queued_job_fails_with_the_reason_and_the_worker_exits(
    row: FailedStartRow, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await start_both(row, folder, hub, tmp_path / "base")
    wrong = find_problems(row, queue, http, folder)
    names = ", ".join(f"`{name}`" for name in row.named_settings)
    ways = ["✗" if way in wrong else "✓" for way in (*WAYS, "--serve")]
    seconds = [f"{queue.seconds:.1f}", f"{http[1]:.1f}"]
    write_row([row.mistake, names, *ways, *seconds, queue.jobs_left], COLUMNS)
    assert wrong == {}, queue.log
    assert queue.errors.keys() == WAYS.keys()
    assert (queue.jobs_left, queue.exit_status) == (0, 1)


async def test_a_core_that_is_killed_from_outside_during_a_start_fails_no_job(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    def kill_core(worker: BackgroundProcess) -> None:
        wait_until(worker.core_pids)
        os.kill(worker.core_pids()[0], signal.SIGKILL)

    queue = await start_failing_worker(worker_environ, tmp_path / "log", kill_core)
    assert (queue.jobs_taken, queue.jobs_left, queue.errors) == (0, len(WAYS), {}), queue.log
    assert queue.exit_status == 1


@pytest.mark.parametrize("row", create_params(FAULTS))
async def test_a_worker_on_a_faulty_machine_takes_no_job(
    row: FailedStartRow, folder: Path, hub: Hub, tmp_path: Path
) -> None:
    queue, http = await start_both(row, folder, hub, tmp_path / "base")
    write_row([row.mistake, queue.jobs_taken, queue.jobs_left, queue.exit_status], FAULTS_COLUMNS)
    assert (queue.jobs_taken, queue.jobs_left, queue.errors) == (0, len(WAYS), {}), queue.log
    assert (queue.exit_status, http[0]) == (1, None)
