"""The loader of media, from the settings and the model."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm.envs
from support.engine.scripted import settings

from worker.engine.run.requests.media import UNREACHABLE_HOST, create_media_loader


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
