"""The modules of a kind of long work are imported when the first work of it is met."""

import json
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.engine.scripted import settings
from support.fine_tunes import ROWS, fine_tune_at
from support.processes.commands import HOME, run

from worker.errors import VolumeError
from worker.long_work.kinds import KINDS, inputs_in_use, stored

# Answers jobs and sweeps as a worker does, and prints what it has imported of fine-tunes.
SCRIPT = """
import asyncio, json, sys
import handler, worker.serve.running
from support.batches import of_lines
from support.engine.scripted import ScriptedEngine, settings, tokens
from worker import sweep
from worker.app import Worker

CREATE = {"model": "demo", "training_file": "file-a"}
JOBS = (
    {"prompt": "a"},
    {"batch": of_lines(1)},
    {"route": "/openapi.json", "method": "GET"},
    {"route": "/v1/files/file-a", "method": "DELETE"},
    {"route": "/v1/fine_tuning/jobs", "method": "POST", "body": CREATE},
)

async def answer(worker, job):
    return [chunk async for chunk in worker.handle({"id": "a", "input": job})]

with ScriptedEngine(*tokens("a")) as engine:
    found = settings(FILES_PATH=sys.argv[1], BASE_PATH=sys.argv[1], FINE_TUNE="off")
    worker = Worker(engine.engines, found)
    yields = [asyncio.run(answer(worker, job)) for job in JOBS]
    worker.unfinished()
    sweep.sweep(found)
    names = [name for name in sys.modules if name.startswith(("worker.fine_tunes", "trainer"))]
    print(json.dumps([yields[1][0]["batch"]["status"], yields[-1][0]["error"], sorted(names)]))
"""


@pytest.mark.parametrize("has_one", [False, True])
def test_a_worker_that_trains_none_and_meets_none_imports_nothing_of_fine_tunes(
    tmp_path: Path, has_one: bool
) -> None:
    if has_one:
        fine_tune_at(tmp_path)
    environ = {**HOME, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    ran = run(environ, sys.executable, "-c", SCRIPT, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    status, error, names = json.loads(ran.stdout.splitlines()[-1])
    assert (status, "FINE_TUNE=off" in error) == ("completed", True)
    assert bool(names) is has_one


def test_kinds_are_found_by_what_the_volume_has(tmp_path: Path) -> None:
    found = settings(FILES_PATH=str(tmp_path))
    assert ([*stored(found)], inputs_in_use(found)) == ([], set())
    fine_tune_at(tmp_path)
    (records,) = stored(found)
    assert records.folder == KINDS["fine_tune"].folder
    assert inputs_in_use(found) == {ROWS}


def test_without_a_volume_there_is_no_telling(tmp_path: Path) -> None:
    with pytest.raises(VolumeError):
        next(iter(stored(settings(BASE_PATH=str(tmp_path / "none")))))


def test_the_table_names_what_there_is() -> None:
    for name, kind in KINDS.items():
        records = kind.load_records(settings())
        assert (records.folder, records.record.kind) == (kind.folder, name)
        assert callable(kind.load_answer())
