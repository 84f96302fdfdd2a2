"""A local RunPod Serverless platform. It meets workers over HTTP only."""

from emulator.faults import Action, Call, Fault, slow_link
from emulator.options import ExpiredAs, FailedAs, LostAs, Options
from emulator.server import Emulator
from emulator.state.job import Chunk, Job, Status
from emulator.state.job_queue import Queue

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
