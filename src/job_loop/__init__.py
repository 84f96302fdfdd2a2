"""The loop that takes jobs from the platform's queue; it replaces the loop of the SDK (``runpod``).

The SDK reads its environment, runs the fitness check and sends pings. ``JobLoop`` replaces the
SDK's ``JobScaler``, which takes jobs and posts their results. Only ``handler.py`` and
``job_loop.sdk`` import the SDK.
"""

from job_loop.loop import JobLoop, LoopLimits
from job_loop.wire import PlatformClient

__all__ = ["JobLoop", "LoopLimits", "PlatformClient"]
