"""The worker's command, run to its end on the demo model."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def without_chat_template() -> Iterator[Path]:
    """Make a copy of the demo model that has no chat template."""
    with tempfile.TemporaryDirectory() as folder:
        for file in DEMO.iterdir():
            if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
                (Path(folder) / file.name).symlink_to(file)
        tokenizer: dict[str, Any] = json.loads((DEMO / "tokenizer_config.json").read_text())
        tokenizer.pop("chat_template", None)
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        yield Path(folder)
