"""Secrets are masked by their values, in all output and in every notation."""

import io
import json
import subprocess
import sys

import pytest
from support import ROOT
from support.effort import loop_iterations

from worker import masking
from worker.errors import InvalidInput

SECRET = 'canary"ü/value'
QUOTED = "back\\slash'canary"


@pytest.fixture(autouse=True)
def _add_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", [])
    masking.add_secrets([SECRET, "short", "", QUOTED, "12345678", "12345678-and-more"])


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
def test_a_secret_is_masked_completely_in_every_notation(text: str, masked: str) -> None:
    assert masking.mask_secrets(text) == masked


@pytest.mark.parametrize(
    ("value", "text", "masked"),
    [
        ("http://user:canary99@host:1/x", "at http://user:canary99@host:1/x", "at ***host:1/x"),
        ("http://user:canary99@host", "Basic user:canary99, canary99", "Basic ***, ***"),
        ("http://u:p@host", "http://u:p@host u:p", "***host u:p"),
        ("socks5h://canary99@host", "canary99", "***"),
        ("http://u:a%40canary@host", "a@canary a%40canary", "*** ***"),
        ("http://u:a@canary@host", "a@canary", "***"),
        ("a=http://a:canary99@b,c=https://d:canary88@e", "canary99 canary88", "*** ***"),
        ('{"url": "http://a:canary99@b"}', "canary99", "***"),
        # Neither of these is a password.
        ("http://host:8000/a@password", "8000 host password", "8000 host password"),
        ("http://host/?a=canary99@b", "canary99", "canary99"),
    ],
)
def test_credentials_in_a_url_are_secrets(value: str, text: str, masked: str) -> None:
    masking.add_url_credentials(["", value])
    assert masking.mask_secrets(text) == masked


@pytest.mark.parametrize("part", ["a", "://", "a://", "a://b", "@", "a@", "://a@", "a:", " "])
def test_long_values_are_searched_for_credentials_in_linear_time(part: str) -> None:
    """A variable may contain 128 KB, such as a certificate."""
    values = [part * (128_000 // len(part)) + end for end in ("", "://", "@", " ")]
    assert loop_iterations(lambda: masking.add_url_credentials(values)) < 40_000_000


def test_a_masked_stream_counts_the_characters_before_masking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, text)
    masking.mask_output()
    assert sys.stdout.write(f"{SECRET}!") == len(SECRET) + 1
    assert text.getvalue() == "***!"


def test_a_truncated_message_contains_no_part_of_a_secret() -> None:
    error = InvalidInput(f"{'x' * 1995}{SECRET}", param=f"a.{SECRET}").body()["error"]
    assert "cana" not in error["message"]
    assert error["param"] == "a.***"


PROGRAM = """
import logging, os, sys, traceback
from worker import logs, masking
masking.add_secrets(["canary-value"])
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
def test_logs_tracebacks_and_prints_contain_no_secret(log_format: str) -> None:
    command = [sys.executable, "-c", PROGRAM, log_format]
    environ = {"PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "canary" not in result.stdout + result.stderr
    assert (result.stdout + result.stderr).count("***") >= 8
