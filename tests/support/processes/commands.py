"""Commands that are run until they exit, and environments of workers with the demo model."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support import ROOT
from support.processes.background import start_command, wait_until

SCRIPT = "src/handler.py"
HANDLER = [sys.executable, "-u", SCRIPT]
DEMO = ROOT / ".models" / "demo"
# Without the last two, a measurement of the coverage by processes (nox -s coverage_processes) would
# miss them.
KEPT = ("PATH", "HOME", "COVERAGE_PROCESS_START", "COVERAGE_FILE")
HOME = {name: os.environ[name] for name in KEPT if name in os.environ}
WORKER = {**HOME, "MODEL_NAME": str(DEMO)}

CompletedCommand = subprocess.CompletedProcess[str]


def run_command(
    environ: Mapping[str, str], *command: str | Path, folder: Path = ROOT
) -> CompletedCommand:
    """Run a command until it and all its child processes have exited (see ``start_command``)."""
    with tempfile.TemporaryDirectory() as printed:
        log, stdout = Path(printed, "log"), Path(printed, "stdout")
        with start_command(command, environ, log, stdout, folder) as running:
            status = running.wait_for_exit()
            wait_until(lambda: not running.session_pids())
        return CompletedCommand(command, status, stdout.read_text(), log.read_text())
