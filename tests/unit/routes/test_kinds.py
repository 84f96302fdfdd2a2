"""Kinds of long work: their modules are imported only if there is work of the kind."""

import json
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.engine.scripted import settings
from support.fine_tunes import ROWS, scripted_fine_tune
from support.processes.commands import HOME, run_command

from worker.errors import VolumeError
from worker.routes.kinds import KINDS, existing_record_collections, input_file_ids_in_use

# Handles jobs and sweeps as a worker does, and prints the imported modules of fine-tunes: without
# fine-tunes on the volume, and with some. Only the real engine imports vLLM, which takes long.
SCRIPT = """
import asyncio, json, sys
from pathlib import Path
import handler, worker.serve.http_server
from support.batches import batch_request
from support.engine.scripted import ScriptedEngine, settings, tokens
from worker import sweep
from worker.app import Worker

CREATE = {"model": "demo", "training_file": "file-a"}
JOBS = (
    {"prompt": "a"},
    {"batch": batch_request(1)},
    {"route": "/openapi.json", "method": "GET"},
    {"route": "/v1/files/file-a", "method": "DELETE"},
    {"route": "/v1/fine_tuning/jobs", "method": "POST", "body": CREATE},
)

async def answer(worker, job):
    return [chunk async for chunk in worker.handle({"id": "a", "input": job})]

def imported():
    rarely_needed = ("worker.fine_tunes", "trainer", "vllm")
    return [name for name in sys.modules if name.startswith(rarely_needed)]

with ScriptedEngine(*tokens("a")) as engine:
    config = settings(FILES_PATH=sys.argv[1], BASE_PATH=sys.argv[1], FINE_TUNE="off")
    worker = Worker(engine.engines, config)
    yields = [asyncio.run(answer(worker, job)) for job in JOBS]
    worker.list_unfinished_work()
    sweep.sweep(config)
    before = imported()
    Path(sys.argv[1], "worker/fine_tunes").mkdir()
    Path(sys.argv[1], "worker", sweep.MARK_NAME).unlink()
    sweep.sweep(config)
    print(json.dumps([yields[1][0]["batch"]["status"], yields[-1][0]["error"], before, imported()]))
"""


def test_the_modules_of_fine_tunes_are_imported_when_a_volume_has_fine_tunes(
    tmp_path: Path,
) -> None:
    environ = {**HOME, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    process = run_command(environ, sys.executable, "-c", SCRIPT, str(tmp_path))
    assert process.returncode == 0, process.stderr
    status, error, before, after = json.loads(process.stdout.splitlines()[-1])
    assert (status, "FINE_TUNE=off" in error) == ("completed", True)
    assert (before, bool(after)) == ([], True)


def test_kinds_are_found_by_their_folders_on_the_volume(tmp_path: Path) -> None:
    config = settings(FILES_PATH=str(tmp_path))
    assert ([*existing_record_collections(config)], input_file_ids_in_use(config)) == ([], set())
    scripted_fine_tune(tmp_path)
    (records,) = existing_record_collections(config)
    assert records.folder == KINDS["fine_tune"].folder
    assert input_file_ids_in_use(config) == {ROWS}


def test_kinds_can_not_be_found_without_a_volume(tmp_path: Path) -> None:
    with pytest.raises(VolumeError):
        next(iter(existing_record_collections(settings(BASE_PATH=str(tmp_path / "none")))))


def test_the_table_of_kinds_matches_their_classes() -> None:
    for name, kind in KINDS.items():
        records = kind.open_records(settings())
        assert (records.folder, records.record_type.kind) == (kind.folder, name)
