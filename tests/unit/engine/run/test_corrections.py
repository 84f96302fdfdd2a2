"""The removal of internal details from vLLM's messages, and of refusals from its log."""

import logging

import pytest
from support.effort import loop_iterations

from worker.engine.run.corrections import is_loggable, sanitize_message, silence_refusals
from worker.errors import MAX_MESSAGE_LENGTH


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no such file: /home/user/model.json", "no such file: <path>"),
        ("in /tmp/a-b/c_d, or 'file:///root/x'", "in <path>, or 'file:<path>'"),
        ("see /a/b/c.py:7", "see <path>:7"),
        ("<A object at 0x7f00deadbeef>", "<A object>"),
        ('bad\n  File "/usr/lib/a.py", line 7, in run\n', "bad"),
        ("/v1/chat/completions, and/or 1/2", "/v1/chat/completions, and/or 1/2"),
        ("see https://docs.vllm.ai/en/usage.html", "see https://docs.vllm.ai/en/usage.html"),
        ("", ""),
    ],
)
def test_paths_addresses_and_tracebacks_are_removed(message: str, expected: str) -> None:
    assert sanitize_message(message) == expected


@pytest.mark.parametrize("fragment", ["/a", "/-", "a", "//", 'File "', " at 0x0", "\n ", "é"])
def test_a_long_message_is_truncated_before_it_is_sanitized(fragment: str) -> None:
    message = fragment * 5_000_000
    assert len(sanitize_message(message)) <= MAX_MESSAGE_LENGTH
    # This takes a tenth of these iterations; reading all of the message takes several times as
    # many.
    assert loop_iterations(lambda: sanitize_message(message)) < 50_000


@pytest.mark.parametrize("propagate", [False, True])
def test_vllm_does_not_log_refusals(propagate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own, above = logging.Handler(), logging.Handler()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [own])
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", propagate)
    monkeypatch.setattr(logging.getLogger(), "handlers", [above])
    silence_refusals()
    assert is_loggable in own.filters
    assert (is_loggable in above.filters) is propagate
