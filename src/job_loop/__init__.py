"""The loop that takes jobs from the platform's queue; it replaces the loop of the SDK (``runpod``).

The SDK reads its environment, runs the fitness check and sends pings. ``JobLoop`` replaces the
SDK's ``JobScaler``, which takes jobs and posts their results. Only ``handler.py`` and
``job_loop.sdk`` import the SDK.

``loop`` keeps a request for jobs open while slots are free, runs each job in a task, and finishes
the jobs before the worker exits. ``polls`` sends these long polls, and ``parsing`` reads their
responses, job by job if one is broken. ``delivery`` posts the yields of a job and its result, and
retries what has failed; ``wire`` knows what a failed post may have done, and replaces everything
after a freeze. Posts have ``connections`` of their own, which take little CPU time.
"""

from job_loop.loop import JobLoop, LoopLimits
from job_loop.wire import PlatformClient

__all__ = ["JobLoop", "LoopLimits", "PlatformClient"]
