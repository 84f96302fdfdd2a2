"""Secrets are masked by their values, whoever prints them and however they are written."""

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from support import ROOT

from worker import masking
from worker.errors import InvalidInput

SECRET = 'canary"ü/value'


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.hide([SECRET, "short", ""])


@pytest.mark.parametrize(
    "written", [SECRET, json.dumps(SECRET), repr(SECRET), "canary%22%C3%BC%2Fvalue", SECRET * 2]
)
def test_a_secret_is_masked_however_it_is_written(written: str) -> None:
    masked = masking.masked(f"a {written} b")
    assert "canary" not in masked
    assert "value" not in masked
    assert masked.startswith("a ")


def test_what_is_too_short_is_not_masked() -> None:
    assert masking.masked("short text") == "short text"


def test_a_secret_that_holds_another_is_masked_whole() -> None:
    masking.hide(["12345678", "12345678-and-more"])
    assert masking.masked("12345678-and-more, 12345678") == "***, ***"


def test_a_secret_is_masked_in_a_value_that_python_shows() -> None:
    secret = "back\\slash'canary"
    masking.hide([secret])
    assert "canary" not in masking.masked(repr({"key": secret}))


def test_a_stream_counts_what_it_was_given() -> None:
    text = io.StringIO()
    stream: Any = masking._Masked(text)
    assert stream.write(f"{SECRET}!") == len(SECRET) + 1
    assert text.getvalue() == "***!"


def test_a_message_to_callers_has_no_secret_even_where_it_is_cut() -> None:
    error = InvalidInput(f"{'x' * 1995}{SECRET}", param=f"a.{SECRET}").body()["error"]
    assert "cana" not in error["message"]
    assert error["param"] == "a.***"


PROGRAM = """
import logging, os, sys, traceback
from worker import logs, masking
masking.hide(["canary-value"])
masking.mask_output()
masking.mask_output()
logs.set_up(sys.argv[1], (1, 2), os.environ)
print("canary-value")
sys.stdout.writelines(["canary-value\\n"])
logging.getLogger("any").error("%s", "canary-value", extra={"fields": {"key": "canary-value"}})
own = logging.getLogger("own")
own.propagate = False
own.addHandler(logging.StreamHandler())
own.warning("canary-value")
try:
    raise ValueError("canary-value")
except ValueError:
    logging.exception("failed")
if os.fork() == 0:
    print("canary-value")
    sys.stdout.flush()
    os._exit(0)
os.wait()
raise KeyError("canary-value")
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_tracebacks_and_prints_have_no_secret(log_format: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, log_format],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "canary" not in ran.stdout + ran.stderr
    assert (ran.stdout + ran.stderr).count("***") >= 8
