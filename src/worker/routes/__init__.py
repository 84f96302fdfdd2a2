"""One file a route family, and one table that picks among them by the job's shape."""

from collections.abc import Callable
from typing import Any

from worker.engine import Engines
from worker.job import Job, ListJob, OpenAIJob, RawJob
from worker.routes import lists, openai, raw
from worker.routes.answer import Answer
from worker.settings import Settings

TABLE: dict[type[Job], Callable[[Any, str, Engines, Settings], Answer[Any]]] = {
    OpenAIJob: openai.answer,
    RawJob: raw.answer,
    ListJob: lists.answer,
}


def answer(job: Job, request_id: str, engines: Engines, settings: Settings) -> Answer[Any]:
    """Turn a job into an answer that has not begun.

    Raises:
        WorkerError: no route serves the job.
    """
    return TABLE[type(job)](job, request_id, engines, settings)
