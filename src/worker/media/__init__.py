"""Finds, fetches and checks images, videos and audio in requests before vLLM reads them.

vLLM receives media only as ``data:`` URLs: its own fetcher would fetch from any reachable host.
"""

from worker.media.contents import MediaLimits
from worker.media.loader import MediaLoader

__all__ = ["MediaLimits", "MediaLoader"]
