"""The media of an engine's requests: what its model takes, and how vLLM's own fetcher is closed."""

from typing import Any, get_args

import vllm.envs

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.seam.protocols import Client
from worker.media import Limits, Media
from worker.media.containers import DEMUXERS
from worker.media.fetcher import Fetcher
from worker.media.walker import Kind
from worker.settings import Settings

# A host that no network has: the only one that vLLM may fetch from.
NOWHERE = "media.invalid"
# Variables that vLLM and OpenCV read: for files that decoders would take for something else than
# the worker did, and for a URL that vLLM got nevertheless.
EXPORTS = {
    "VLLM_MAX_IMAGE_PIXELS": "40000000",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "OPENCV_FFMPEG_CAPTURE_OPTIONS": f"format_whitelist;{','.join(DEMUXERS)}",
}
# What some models call images and videos alike.
VISION = "vision_chunk"


def media_of(client: Client, settings: Settings) -> Media:
    """Return what replaces the media of a client's requests."""
    limits = Limits(
        remote=settings.allow_remote_media,
        megabytes=settings.media_max_mb,
        parts=settings.media_max_parts,
        seconds=settings.media_fetch_timeout_s,
        pixels=max(0, vllm.envs.VLLM_MAX_IMAGE_PIXELS),
    )
    kinds: list[Kind] = []
    if client.model_config.is_multimodal_model:
        allowed = client.renderer.get_mm_processor().info.allowed_mm_limits
        visual = ("image", "video") if allowed.get(VISION) else ()
        kinds = [kind for kind in get_args(Kind) if allowed.get(kind) or kind in visual]
    return Media(limits, Fetcher(hosts(client.model_config)), kinds)


def hosts(model_config: Any) -> tuple[str, ...]:
    """Return the only hosts that the operator lets the worker fetch from; none: all."""
    domains = model_config.allowed_media_domains or ()
    return tuple(domain for domain in domains if domain != NOWHERE)


def without_fetcher(arguments: EngineArguments, _: StartContext) -> EngineArguments:
    """Return arguments with which vLLM fetches and opens no media by itself.

    Hosts that the operator allows are kept: the worker's own fetcher reads them, too.
    """
    domains = arguments.vllm.allowed_media_domains or [NOWHERE]
    return arguments.with_options(allowed_media_domains=domains, allowed_local_media_path="")
