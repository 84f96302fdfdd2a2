"""Tests that all processes of a worker exit when the worker is killed with SIGKILL.

`tests/chaos/kills.py` kills workers at many random moments, and measures the time until the exit.
"""

import os
import signal
from pathlib import Path

import pytest
from support.hub.downloads import leases, slow_down
from support.hub.downloads import worker_environ as download_environ
from support.hub.server import Hub
from support.processes.background import start_command, wait_until
from support.processes.commands import HANDLER, HOME, SCRIPT
from support.processes.kills import (
    CORE,
    DOWNLOAD,
    GRAMMAR,
    READERS,
    TRAINER,
    ProcessTree,
    begin_training,
    complete_with_grammar,
    kill_worker,
    training_environ,
)
from support.processes.servers import ServerProcess

SERVE = ("--serve", "--port", "0")


def test_a_worker_killed_during_a_download_leaves_no_process(
    hub: Hub, model_repository: Path, volume: Path, tmp_path: Path
) -> None:
    environ = {**download_environ(hub, volume), "LOG_FORMAT": "json"}
    with start_command([*HANDLER, *SERVE], environ, tmp_path / "log") as worker:
        slow_down(hub, model_repository)
        family = kill_worker(worker)
        assert family.has_all(READERS[0], "serve/startup_server.py", DOWNLOAD)
        wait_until(lambda: not family.running_commands())
    # Another worker can continue the download immediately.
    assert leases(volume) == []


@pytest.mark.parametrize(
    "moment",
    ["start", *(pytest.param(one, marks=pytest.mark.slow) for one in ("training", "healed"))],
)
def test_a_worker_killed_during_startup_training_or_after_healing_leaves_no_process(
    worker_environ: dict[str, str], volume: Path, tmp_path: Path, moment: str
) -> None:
    environ = {**HOME, **training_environ(worker_environ["MODEL_NAME"], volume)}
    with start_command([SCRIPT, *SERVE], environ, tmp_path / "log") as worker:
        wait_until(worker.core_pids)
        if moment != "start":
            worker.wait_for_output("Uvicorn running on ")
        if moment == "healed":
            os.kill(worker.core_pids()[0], signal.SIGKILL)
            # The new core is not a fork, so only the watch on its parent stops it.
            worker.wait_for_output(" has restarted after ")
        if moment == "training":
            # This process starts with the first grammar.
            assert not ProcessTree.of_worker(worker).has_all(GRAMMAR)
            url = ServerProcess(worker.process, worker.log).url
            complete_with_grammar(url)
            begin_training(url)
            wait_until(lambda: ProcessTree.of_worker(worker).has_all(TRAINER, GRAMMAR))
        family = kill_worker(worker)
        assert family.has_all(CORE, *READERS)
        wait_until(lambda: not family.running_commands())
