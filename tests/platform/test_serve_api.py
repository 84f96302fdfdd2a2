"""The SDK's own test API on top of the worker."""

import json
import re
import urllib.request
from pathlib import Path

from support.processes.background import HUNG_S
from support.processes.commands import SCRIPT
from support.processes.forked import forked

JOB = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 3, "ignore_eos": True}}}


def test_rp_serve_api_answers_a_job(worker_environ: dict[str, str], tmp_path: Path) -> None:
    command = (SCRIPT, "--rp_serve_api", "--rp_api_port", "0")
    with forked(command, worker_environ, tmp_path / "log") as worker:
        worker.wait_for_output("Uvicorn running on ")
        (url,) = re.findall(r"Uvicorn running on (http://\S+)", worker.output)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/runsync", json.dumps(JOB).encode(), headers)
        with urllib.request.urlopen(request, timeout=HUNG_S) as response:
            answer = json.load(response)
        worker.process.terminate()
        worker.ended()
    assert answer["status"] == "COMPLETED"
    assert answer["output"][-1]["usage"]["output"] == 3
