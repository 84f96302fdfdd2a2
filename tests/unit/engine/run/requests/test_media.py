"""Media in requests, and the removal of internal details from vLLM's messages."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs
from support.effort import loop_iterations
from support.engine.scripted import settings

from worker.engine.run.requests.media import UNREACHABLE_HOST, create_media_loader
from worker.engine.run.requests.refusals import is_loggable, sanitize_message, silence_refusals
from worker.errors import MAX_MESSAGE_LENGTH


def client(limits: dict[str, int] | None, domains: list[str] | None = None) -> Any:
    """Return a client of a model with these limits for each kind of media; None for text only."""
    processor = SimpleNamespace(info=SimpleNamespace(allowed_mm_limits=limits))
    config = SimpleNamespace(allowed_media_domains=domains)
    renderer = SimpleNamespace(mm_processor=processor if limits else None)
    return SimpleNamespace(model_config=config, renderer=renderer)


@pytest.mark.parametrize(
    ("limits", "kinds"),
    [
        (None, set()),
        ({"image": 1, "audio": 0}, {"image"}),
        ({"audio": 999}, {"audio"}),
        ({"vision_chunk": 1}, {"image", "video"}),
    ],
)
def test_a_model_accepts_the_kinds_of_media_that_vllm_lists(
    limits: dict[str, int] | None, kinds: set[str]
) -> None:
    assert create_media_loader(client(limits), settings())._kinds == kinds


@pytest.mark.parametrize(("vllm_limit", "pixels"), [(40_000_000, 40_000_000), (-1, 0)])
def test_limits_come_from_settings_or_vllm(
    vllm_limit: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_MAX_IMAGE_PIXELS", vllm_limit)
    environ = {"ALLOW_REMOTE_MEDIA": "0", "MEDIA_MAX_MB": "3", "MEDIA_MAX_PARTS": "4"}
    limits = create_media_loader(client(None), settings(**environ))._limits
    assert (limits.allow_remote, limits.megabytes, limits.parts) == (False, 3, 4)
    assert limits.pixels == pixels


@pytest.mark.parametrize(
    ("domains", "fetched"),
    [([UNREACHABLE_HOST], set()), (["example.com"], {"example.com"}), (None, set())],
)
def test_the_fetcher_uses_only_hosts_that_the_operator_allows(
    domains: Any, fetched: set[str]
) -> None:
    assert create_media_loader(client(None, domains), settings())._fetcher._domains == fetched


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
