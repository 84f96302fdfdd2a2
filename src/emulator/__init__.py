"""A local RunPod Serverless platform: speaks HTTP only and knows nothing of the worker."""

from emulator.jobs import Chunk, Job, Queue, Status
from emulator.options import FailedAs, Options
from emulator.server import Emulator

__all__ = ["Chunk", "Emulator", "FailedAs", "Job", "Options", "Queue", "Status"]
