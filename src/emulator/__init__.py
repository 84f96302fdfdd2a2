"""A local RunPod Serverless platform: speaks HTTP only and knows nothing of the worker."""

from emulator.faults import Action, Call, Fault, slow_link
from emulator.job_queue import Queue
from emulator.jobs import Chunk, Job, Status
from emulator.options import ExpiredAs, FailedAs, LostAs, Options
from emulator.server import Emulator

__all__ = [
    "Action",
    "Call",
    "Chunk",
    "Emulator",
    "ExpiredAs",
    "FailedAs",
    "Fault",
    "Job",
    "LostAs",
    "Options",
    "Queue",
    "Status",
    "slow_link",
]
