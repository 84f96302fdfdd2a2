"""The routes: a module for every family, chosen by the job's class."""

from typing import Any

from worker.engine import Engines
from worker.job import ListJob, OpenAIJob, RawJob
from worker.routes import lists, openai, raw
from worker.routes.answer import Answer
from worker.settings import Settings


def answer(
    job: OpenAIJob | RawJob | ListJob, request_id: str, engines: Engines, settings: Settings
) -> Answer[Any]:
    """Return the answer to a job, which has not started.

    Raises:
        WorkerError: no route serves the job.
    """
    match job:
        case OpenAIJob():
            return openai.answer(job, request_id, engines, settings)
        case RawJob():
            return raw.answer(job, request_id, engines.main)
        case ListJob():
            return lists.answer(job, request_id, engines.main)
