"""What an engine's model takes besides text, and what the operator allows of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs
from support.engine.scripted import settings

from worker.engine.requests.media import NOWHERE, media_of


def client(limits: dict[str, int] | None, domains: list[str] | None = None) -> Any:
    """Return a client whose model takes so many of each; None: text only."""

    def processor() -> Any:
        return SimpleNamespace(info=SimpleNamespace(allowed_mm_limits=limits))

    return SimpleNamespace(
        model_config=SimpleNamespace(
            is_multimodal_model=limits is not None, allowed_media_domains=domains
        ),
        renderer=SimpleNamespace(get_mm_processor=processor),
    )


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
def test_the_limits_are_those_of_the_settings_and_of_vllms_variable(
    known: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm.envs, "VLLM_MAX_IMAGE_PIXELS", known)
    environ = {"ALLOW_REMOTE_MEDIA": "0", "MEDIA_MAX_MB": "3", "MEDIA_MAX_PARTS": "4"}
    limits = media_of(client(None), settings(**environ))._limits
    assert (limits.remote, limits.megabytes, limits.parts) == (False, 3, 4)
    assert limits.pixels == pixels


def test_only_the_operators_hosts_are_the_fetchers() -> None:
    for domains, kept in (([NOWHERE], set()), (["example.com"], {"example.com"}), (None, set())):
        assert media_of(client(None, domains), settings())._fetcher._domains == kept
