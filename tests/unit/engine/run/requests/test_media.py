"""What is taken of a request besides its text, and what is taken out of vLLM's messages."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs
from support.effort import turns
from support.engine.scripted import settings

from worker.engine.run.requests.media import NOWHERE, media_of
from worker.engine.run.requests.refusals import quotes_nothing, sanitized, silence_refusals
from worker.errors import LONGEST_MESSAGE


def client(limits: dict[str, int] | None, domains: list[str] | None = None) -> Any:
    """Return a client whose model takes so many of each; None: text only."""
    processor = SimpleNamespace(info=SimpleNamespace(allowed_mm_limits=limits))
    config = SimpleNamespace(is_multimodal_model=limits is not None, allowed_media_domains=domains)
    renderer = SimpleNamespace(get_mm_processor=lambda: processor)
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
def test_a_model_takes_what_vllm_says(limits: dict[str, int] | None, kinds: set[str]) -> None:
    assert media_of(client(limits), settings())._kinds == kinds


@pytest.mark.parametrize(("known", "pixels"), [(40_000_000, 40_000_000), (-1, 0)])
def test_limits_are_set_or_vllms(known: int, pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_MAX_IMAGE_PIXELS", known)
    environ = {"ALLOW_REMOTE_MEDIA": "0", "MEDIA_MAX_MB": "3", "MEDIA_MAX_PARTS": "4"}
    limits = media_of(client(None), settings(**environ))._limits
    assert (limits.remote, limits.megabytes, limits.parts) == (False, 3, 4)
    assert limits.pixels == pixels


@pytest.mark.parametrize(
    ("domains", "fetched"),
    [([NOWHERE], set()), (["example.com"], {"example.com"}), (None, set())],
)
def test_only_the_operators_hosts_are_the_fetchers(domains: Any, fetched: set[str]) -> None:
    assert media_of(client(None, domains), settings())._fetcher._domains == fetched


@pytest.mark.parametrize(
    ("message", "rest"),
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
def test_paths_addresses_and_tracebacks_are_taken_out(message: str, rest: str) -> None:
    assert sanitized(message) == rest


@pytest.mark.parametrize("fragment", ["/a", "/-", "a", "//", 'File "', " at 0x0", "\n ", "é"])
def test_a_message_is_cut_before_it_is_read(fragment: str) -> None:
    message = fragment * 5_000_000
    assert len(sanitized(message)) <= LONGEST_MESSAGE
    # It takes a tenth of that; to read all of the message takes several times as many.
    assert turns(lambda: sanitized(message)) < 50_000


@pytest.mark.parametrize("propagate", [False, True])
def test_refusals_are_not_in_vllms_logs(propagate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own, above = logging.Handler(), logging.Handler()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [own])
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", propagate)
    monkeypatch.setattr(logging.getLogger(), "handlers", [above])
    silence_refusals()
    assert quotes_nothing in own.filters
    assert (quotes_nothing in above.filters) is propagate
