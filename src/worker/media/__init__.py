"""Finds, fetches and checks images, videos and audio in requests before vLLM reads them.

vLLM receives media only as ``data:`` URLs. vLLM's own fetcher would fetch from any host that the
worker can reach.
"""

from worker.media.contents import MediaLimits
from worker.media.loader import MediaLoader

__all__ = ["MediaLimits", "MediaLoader"]
