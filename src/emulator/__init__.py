"""A local RunPod Serverless platform, which communicates with workers over HTTP only.

Callers send requests to ``server``: the platform's own routes (``http.public_api``), or OpenAI's
and LLM Engine's (``http.gateways``). Each becomes a ``Job`` in the ``Queue``. Workers take it at a
port of their own (``http.worker_port``) and post its chunks and its result (``http.worker_api``);
``faults`` and ``http.control`` disturb them on demand. ``load_balancer`` has no queue, and forwards
requests. ``fleet`` starts the workers, in place of containers, and restarts them.
"""

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
