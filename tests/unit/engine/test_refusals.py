"""Messages of vLLM's server: what is taken out of them, and how long that takes."""

import logging

import pytest
from support.effort import turns

from worker.engine.requests.refusals import is_no_refusal, sanitized, silence_refusals
from worker.errors import LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("message", "shown"),
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
def test_paths_addresses_and_tracebacks_are_taken_out(message: str, shown: str) -> None:
    assert sanitized(message) == shown


@pytest.mark.parametrize("fragment", ["/a", "/-", "a", "//", 'File "', " at 0x0", "\n ", "é"])
def test_a_message_is_cut_before_it_is_read(fragment: str) -> None:
    message = fragment * 5_000_000
    assert len(sanitized(message)) <= LONGEST_MESSAGE
    # It takes a tenth of that; to read all of the message takes several times as many.
    assert turns(lambda: sanitized(message)) < 50_000


@pytest.mark.parametrize("propagate", [False, True])
def test_refusals_are_kept_out_of_all_that_vllms_log_is_written_to(
    propagate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, above = logging.Handler(), logging.Handler()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [own])
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", propagate)
    monkeypatch.setattr(logging.getLogger(), "handlers", [above])
    silence_refusals()
    assert is_no_refusal in own.filters
    assert (is_no_refusal in above.filters) is propagate
