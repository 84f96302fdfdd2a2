"""The command ``proof.platform`` against the platform's REST API on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.runpod_api.server import KEY, Runpod, runpod_api

from proof.platform.__main__ import main

# Returns the exit status and the output.
Prove = Callable[..., tuple[int, str]]


@pytest.fixture
def runpod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runpod]:
    """Run a platform whose account's key is in the environment, and whose jobs end immediately."""
    monkeypatch.setenv("RUNPOD_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    with runpod_api() as running:
        running.polls_until_done = 0
        yield running


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "report"


@pytest.fixture
def prove(runpod: Runpod, output: Path, capsys: pytest.CaptureFixture[str]) -> Prove:
    """Return a function that runs the command without pauses."""

    def call(*words: str) -> tuple[int, str]:
        urls = ("--api-url", f"{runpod.url}/v2", "--queue-url", f"{runpod.url}/queue")
        status = main(
            [*urls, "--image", "me/worker:1", "--output", str(output), *words], lambda _: None
        )
        printed = capsys.readouterr()
        assert KEY not in printed.out + printed.err
        return status, printed.out + printed.err

    return call
