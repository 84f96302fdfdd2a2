"""The worker's command, run to its end on the demo model."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import ROOT
from support.processes.background import HUNG_S

SCRIPT = "src/handler.py"
HANDLER = [sys.executable, "-u", SCRIPT]
DEMO = ROOT / ".models" / "demo"
HOME = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
WORKER = {**HOME, "MODEL_NAME": str(DEMO)}

Ran = subprocess.CompletedProcess[str]


def run(environ: dict[str, str], *command: str) -> Ran:
    """Run a command in the repository's root, with an environment of its own."""
    return subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S, check=False
    )


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
