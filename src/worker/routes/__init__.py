"""The routes: a module for every family, chosen by the job's class."""

from typing import Any

from worker.job import AnyJob, BatchJob, FineTuneJob, ListJob, OpenAIJob, RawJob
from worker.job.structured.bounds import Bounds
from worker.routes import batches, fine_tunes, generation, lists, openai
from worker.routes.abilities import refuse_unable
from worker.routes.answer import Answer
from worker.routes.resources import Resources


def answer(job: AnyJob, request_id: str, resources: Resources, seconds: float) -> Answer[Any]:
    """Return the answer to a job, which has not started.

    Args:
        job: parsed.
        request_id: the job's id.
        resources: what it is answered with.
        seconds: that it may take.

    Raises:
        WorkerError: no route serves the job.
    """
    engines, settings = resources.engines, resources.settings
    match job:
        case OpenAIJob():
            return openai.answer(job, request_id, resources)
        case RawJob():
            refuse_unable(job.model, [engines.main], engines, "prompts and messages")
            return generation.answer(job, request_id, engines.main, Bounds.of(settings))
        case ListJob():
            refuse_unable(job.shared.model, [engines.main], engines, "prompts and messages")
            return lists.answer(job, request_id, engines.main, Bounds.of(settings))
        case BatchJob():
            return batches.answer(job, request_id, resources, seconds)
        case FineTuneJob():
            return fine_tunes.answer(job, request_id, resources, seconds)


def described(job: AnyJob) -> tuple[str, bool]:
    """Return a job's route for the log, in none of the caller's words, and whether it streams."""
    match job:
        case OpenAIJob():
            route = openai.find(job)
            if route is None:
                return "unknown", False
            return route.template, job.stream or (route.generate is not None and route.streams)
        case RawJob():
            return "raw", job.stream
        case ListJob():
            return "list", job.stream
        case BatchJob():
            return "batch", job.stream
        case FineTuneJob():
            return "fine_tune", job.stream
