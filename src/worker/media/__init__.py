"""Images, videos and audio in requests: found, fetched, and held to limits before vLLM reads them.

vLLM gets ``data:`` URLs only. Its own fetcher would fetch from any host that the worker reaches.
"""

from worker.media.contents import Limits
from worker.media.loader import Media

__all__ = ["Limits", "Media"]
