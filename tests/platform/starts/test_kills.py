"""A worker that is killed with SIGKILL takes all of its processes with it, whatever they do.

`tests/chaos/kills.py` does so at many random moments, and measures how long it takes.
"""

import os
import signal
from pathlib import Path

import pytest
from support.hub.downloads import environ as downloading
from support.hub.downloads import hold
from support.hub.server import Hub
from support.processes.background import background, wait_until
from support.processes.commands import HANDLER, HOME, SCRIPT
from support.processes.http_worker import Served
from support.processes.kills import (
    CORE,
    DOWNLOAD,
    GRAMMAR,
    READERS,
    TRAINER,
    Family,
    begin_training,
    kill,
    training_worker,
)

SERVE = ("--serve", "--port", "0")


def test_in_a_download(hub: Hub, model_repository: Path, volume: Path, tmp_path: Path) -> None:
    environ = {**downloading(hub, volume), "LOG_FORMAT": "json"}
    with background([*HANDLER, *SERVE], environ, tmp_path / "log") as worker:
        hold(hub, model_repository)
        family = kill(worker)
        assert family.has(READERS[0], "serve/starting.py", DOWNLOAD)
        wait_until(lambda: not family.alive())


@pytest.mark.parametrize(
    "moment", ["start", "training", pytest.param("healed", marks=pytest.mark.slow)]
)
def test_while_its_core_starts_and_trains_and_is_no_fork_any_more(
    worker_environ: dict[str, str], volume: Path, tmp_path: Path, moment: str
) -> None:
    environ = {**HOME, **training_worker(worker_environ["MODEL_NAME"], volume)}
    with background([SCRIPT, *SERVE], environ, tmp_path / "log") as worker:
        wait_until(worker.cores)
        if moment != "start":
            worker.wait_for_output("Uvicorn running on ")
        if moment == "healed":
            os.kill(worker.cores()[0], signal.SIGKILL)
            # From then on nothing but the rule ends it.
            worker.wait_for_output(" is back after ")
        if moment == "training":
            begin_training(Served(worker.process, worker.log).url)
            wait_until(lambda: Family.of(worker).has(TRAINER, GRAMMAR))
        family = kill(worker)
        assert family.has(CORE, *READERS)
        wait_until(lambda: not family.alive())
