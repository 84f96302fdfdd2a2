"""Runs schemathesis against ``--serve``, by the server's OpenAPI description (``make fuzz``).

The status is 1 if a request was answered with a 5xx (each kind is listed with a command that
repeats it), or if the server does not answer afterwards. Arguments are passed to schemathesis.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from support import ROOT
from support.processes.http_worker import HttpWorker, http_worker

TOOL = ROOT / ".fuzz" / "bin" / "schemathesis"
# Has the traceback of each defect, with the request's id.
LOG = ROOT / ".fuzz" / "server.log"
MODEL = ROOT / ".models" / "demo"
LIMIT_S = 20 * 60


def main() -> int:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    # With a short context no answer takes long.
    settings = {"MODEL_NAME": str(MODEL), "MAX_MODEL_LEN": "1024"}
    with http_worker({**kept, **settings}, LOG) as server:
        status = fuzz(server.url, kept)
        healthy = answers(server)
    sys.stdout.write("" if healthy else f"The server does not answer any more: {LOG}\n")
    return status or int(not healthy)


def fuzz(url: str, environ: dict[str, str]) -> int:
    """Run schemathesis in a temporary folder; return its status."""
    hooks = Path(__file__).with_name("hooks.py")
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [TOOL, "run", f"{url}/openapi.json", *options()],
            cwd=folder,
            env={**environ, "SCHEMATHESIS_HOOKS": str(hooks)},
            timeout=LIMIT_S,
            check=False,
        ).returncode


def options() -> list[str]:
    return [
        "--checks=not_a_server_error",
        # First every field at its bounds and with wrong types, then random bodies.
        "--phases=coverage,fuzzing",
        "--max-examples=300",
        # With more, schemathesis sometimes fails in a cache that its threads share.
        "--workers=1",
        "--continue-on-failure",
        "--request-timeout=60",
        "--suppress-health-check=all",
        "--generation-database=none",
        "--warnings=off",
        *sys.argv[1:],
    ]


def answers(server: HttpWorker) -> bool:
    """Return whether the server still answers with the engine."""
    body = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
