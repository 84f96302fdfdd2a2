"""The example of docs/fine-tuning.md, run as a newcomer would: it ends with what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support import ROOT
from support.processes.http_worker import http_worker

PAGE = (ROOT / "docs" / "fine-tuning.md").read_text()
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHERE = "http://localhost:8000"
# Seconds; the page says two minutes, on a machine that does nothing else.
HUNG_S = 400


def test_the_page_s_example_teaches_the_demo_model(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    (example,) = EXAMPLE.findall(PAGE)
    assert WHERE in example
    # As `make serve` names it.
    model = os.path.relpath(worker_environ["MODEL_NAME"])
    environ = {
        **worker_environ,
        "MODEL_NAME": model,
        "ENABLE_LORA": "1",
        "BASE_PATH": str(tmp_path),
    }
    with http_worker(environ, tmp_path / "log") as worker:
        ran = subprocess.run(
            [sys.executable, "-c", example.replace(WHERE, worker.url)],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=HUNG_S,
        )
    ended, *events, base, taught = ran.stdout.splitlines()
    assert ended == "succeeded None"
    assert len(events) == 5
    assert "colour" not in base
    assert re.fullmatch(r"demo\.colours\.\d{6}-\d{6} -> A token is green, of course\.", taught)
