"""A local RunPod Serverless platform, which communicates with workers over HTTP only."""

from emulator.faults import Action, Call, Fault, faults_that_delay_posts
from emulator.job import Chunk, Job, Status
from emulator.job_queue import Queue
from emulator.options import ExpiredJobHandling, FailedJobHandling, LostJobHandling, Options
from emulator.server import Emulator

__all__ = [
    "Action",
    "Call",
    "Chunk",
    "Emulator",
    "ExpiredJobHandling",
    "FailedJobHandling",
    "Fault",
    "Job",
    "LostJobHandling",
    "Options",
    "Queue",
    "Status",
    "faults_that_delay_posts",
]
