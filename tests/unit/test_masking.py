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
QUOTED = "back\\slash'canary"


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.hide([SECRET, "short", "", QUOTED, "12345678", "12345678-and-more"])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"a {SECRET} b", "a *** b"),
        (f"a {json.dumps(SECRET)} b", 'a "***" b'),
        (f"a {SECRET!r} b", "a '***' b"),
        ("a canary%22%C3%BC%2Fvalue b", "a *** b"),
        (f"a {SECRET * 2} b", "a ****** b"),
        (repr({"key": QUOTED}), "{'key': \"***\"}"),
        ("12345678-and-more, 12345678", "***, ***"),
        ("short text", "short text"),
    ],
)
def test_a_secret_is_masked_whole_however_it_is_written(text: str, masked: str) -> None:
    assert masking.masked(text) == masked


def test_a_stream_counts_what_was_written_to_it() -> None:
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
logs.set_up(sys.argv[1], (1, 2))
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
    command = [sys.executable, "-c", PROGRAM, log_format]
    environ = {"PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "canary" not in ran.stdout + ran.stderr
    assert (ran.stdout + ran.stderr).count("***") >= 8
