"""The routes: a module for every family, chosen by the job's class."""

from typing import Any

from worker.dialects import batch_jobs, fine_tune_jobs, table
from worker.dialects.llm_engine import batch_output
from worker.dialects.llm_engine.completions import LLMEngineForm
from worker.dialects.raw import RawForm
from worker.job import AnyJob, BatchJob, FineTuneJob, ListJob, OpenAIJob, RawJob
from worker.limits.structured import Bounds
from worker.routes import generation, lists
from worker.routes.abilities import refuse_unable
from worker.routes.answer import Answer
from worker.routes.generation import MakeForm
from worker.routes.resources import Resources

# What batches can write beside their files of results.
OUTPUTS = batch_output.OUTPUTS
# The forms of raw answers, by the key ``format`` of the input.
FORMS: dict[str, MakeForm] = {"raw": RawForm, "llm_engine": LLMEngineForm}


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
    engines, bounds = resources.engines, Bounds.of(resources.settings)
    match job:
        case OpenAIJob():
            return table.answer(job, request_id, resources)
        case RawJob():
            refuse_unable(job.model, [engines.main], engines, "prompts and messages")
            return generation.answer(job, request_id, engines.main, bounds, FORMS[job.format])
        case ListJob():
            refuse_unable(job.shared.model, [engines.main], engines, "prompts and messages")
            return lists.answer(job, request_id, engines.main, bounds, FORMS[job.shared.format])
        case BatchJob():
            return batch_jobs.answer(job, request_id, resources, seconds)
        case FineTuneJob():
            return fine_tune_jobs.answer(job, request_id, resources, seconds)


def described(job: AnyJob) -> tuple[str, bool]:
    """Return a job's route for the log, in none of the caller's words, and whether it streams."""
    match job:
        case OpenAIJob():
            route = table.find(job)
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
