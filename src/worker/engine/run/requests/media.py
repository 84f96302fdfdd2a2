"""The worker's loader for media in requests, and options that keep vLLM from fetching media."""

from typing import Any, get_args

import vllm.envs

from worker.engine.arguments import EngineArguments
from worker.engine.seam.protocols import Client
from worker.media.contents import DEMUXERS, MediaLimits
from worker.media.fetcher import WebFetcher
from worker.media.loader import MediaLoader
from worker.media.walker import MediaKind
from worker.settings import Settings

# A host that exists in no network. It is the only host that vLLM may fetch from, unless the
# operator allows others.
UNREACHABLE_HOST = "media.invalid"
# Environment variables that limit vLLM and OpenCV, in case a decoder reads a file differently than
# the worker's check, or a URL gets past the check.
ENVIRONMENT = {
    "VLLM_MAX_IMAGE_PIXELS": "40000000",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "OPENCV_FFMPEG_CAPTURE_OPTIONS": f"format_whitelist;{','.join(DEMUXERS)}",
}
# vLLM's name for images and videos of models that treat both in the same way.
VISION_CHUNK = "vision_chunk"


def create_media_loader(client: Client, settings: Settings) -> MediaLoader:
    limits = MediaLimits(
        allow_remote=settings.allow_remote_media,
        megabytes=settings.media_max_mb,
        parts=settings.media_max_parts,
        timeout_s=settings.media_fetch_timeout_s,
        pixels=max(0, vllm.envs.VLLM_MAX_IMAGE_PIXELS),
    )
    kinds: list[MediaKind] = []
    if processor := client.renderer.mm_processor:
        allowed = processor.info.allowed_mm_limits
        vision_kinds = ("image", "video") if allowed.get(VISION_CHUNK) else ()
        kinds = [kind for kind in get_args(MediaKind) if allowed.get(kind) or kind in vision_kinds]
    return MediaLoader(limits, WebFetcher(allowed_hosts(client.model_config)), kinds)


def allowed_hosts(model_config: Any) -> tuple[str, ...]:
    """Return the only hosts that the worker may fetch from; empty if all hosts are allowed."""
    domains = model_config.allowed_media_domains or ()
    return tuple(domain for domain in domains if domain != UNREACHABLE_HOST)


def disable_media_fetching(arguments: EngineArguments, _: object) -> EngineArguments:
    """Return arguments that keep vLLM from fetching media, and from opening local files.

    Hosts that the operator allows stay in the arguments, where the worker's fetcher finds them.
    """
    domains = arguments.vllm_args.allowed_media_domains or [UNREACHABLE_HOST]
    return arguments.with_options(allowed_media_domains=domains, allowed_local_media_path="")
