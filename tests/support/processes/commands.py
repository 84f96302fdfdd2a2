"""The worker's command, run to its end on the demo model."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support import ROOT
from support.processes.background import background, wait_until

SCRIPT = "src/handler.py"
HANDLER = [sys.executable, "-u", SCRIPT]
DEMO = ROOT / ".models" / "demo"
HOME = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
WORKER = {**HOME, "MODEL_NAME": str(DEMO)}

Ran = subprocess.CompletedProcess[str]


def run(environ: Mapping[str, str], *command: str | Path, folder: Path = ROOT) -> Ran:
    """Run a command to its end, and that of all that it started (see ``background``)."""
    with tempfile.TemporaryDirectory() as printed:
        log, stdout = Path(printed, "log"), Path(printed, "stdout")
        with background(command, environ, log, stdout, folder) as running:
            status = running.ended()
            wait_until(lambda: not running.session())
        return Ran(command, status, stdout.read_text(), log.read_text())
