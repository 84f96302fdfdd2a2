"""The routes: a module for every family, chosen by the job's class."""

from typing import Any

from worker.job import ListJob, OpenAIJob, RawJob
from worker.job.structured.bounds import Bounds
from worker.routes import lists, openai, raw
from worker.routes.answer import Answer
from worker.routes.resources import Resources


def answer(job: OpenAIJob | RawJob | ListJob, request_id: str, resources: Resources) -> Answer[Any]:
    """Return the answer to a job, which has not started.

    Raises:
        WorkerError: no route serves the job.
    """
    engines, settings = resources.engines, resources.settings
    match job:
        case OpenAIJob():
            return openai.answer(job, request_id, resources)
        case RawJob():
            return raw.answer(job, request_id, engines.main, Bounds.of(settings))
        case ListJob():
            return lists.answer(job, request_id, engines.main, Bounds.of(settings))


def name(job: OpenAIJob | RawJob | ListJob) -> str:
    """Return a job's route for the log, in none of the caller's words."""
    match job:
        case OpenAIJob():
            route = openai.find(job)
            return route.template if route else "unknown"
        case RawJob():
            return "raw"
        case ListJob():
            return "list"
