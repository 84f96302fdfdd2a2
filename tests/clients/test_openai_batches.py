"""Files and batches over --serve with older versions of OpenAI's client; .venv has the newest."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.processes.http_worker import KEY, HttpWorker, http_worker

PROGRAM = Path(__file__).parent / "openai_batches.py"
FOLDERS = {"1": ROOT / ".clients" / "openai-1", "2": ROOT / ".clients"}
CLIENT_S = 300
BEGINS = "This worker turns a Hugging Face model"


@pytest.fixture(scope="module")
def server(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpWorker]:
    folder = tmp_path_factory.mktemp("serve")
    environ = {"SERVE_API_KEY": KEY, "FILES_PATH": str(folder / "volume")}
    with http_worker({**worker_environ, **environ}, folder / "log") as running:
        yield running


@pytest.mark.parametrize("version", FOLDERS)
def test_an_older_client_uploads_runs_lists_cancels_reads_and_deletes(
    version: str, server: HttpWorker
) -> None:
    if not (FOLDERS[version] / "installed").is_file():
        pytest.skip("it is not installed: `make test-clients` does it")
    ran = subprocess.run(
        [FOLDERS[version] / "bin" / "python", PROGRAM, f"{server.url}/v1", KEY],
        env={},
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["version"].startswith(f"{version}.")
    sync = found["sync"]
    batch = sync["batch"]
    assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert list(sync["answers"]) == [f"c{number}" for number in range(20)]
    assert all(text.startswith(BEGINS) for text in sync["answers"].values())
    assert sync["cancelling"] in {"cancelling", "cancelled"}
    assert (sync["cancelled"], sync["deleted"]) == ("cancelled", True)
    # By pages of one.
    assert set(sync["ids"]) <= set(sync["listed"])
    assert (sync["refusal"]["code"], sync["refusal"]["param"]) == (404, "batch_id")
    assert list(found["async"]["answers"]) == [f"c{number}" for number in range(5)]
    assert found["async"]["id"] in found["async"]["listed"]
