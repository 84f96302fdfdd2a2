"""The loop between the platform's queue and the worker, in place of the SDK's own.

The SDK reads its environment, checks the worker's fitness and pings; its ``JobScaler``, which takes
jobs and posts their answers, gives way to ``JobLoop``. Besides ``handler.py`` only ``sdk`` imports
the SDK.
"""

from job_loop.loop import JobLoop, Limits
from job_loop.wire import Wire

__all__ = ["JobLoop", "Limits", "Wire"]
