"""LLM Engine's routes for fine-tunes; OpenAI's routes list the same ones as fine-tuning jobs."""

import asyncio
from typing import TYPE_CHECKING, Any

from worker.errors import Conflict, field_error
from worker.job.fine_tune import CreateFineTune, Integration, NonEmptyText, Suffix, WandbOptions
from worker.routes.long_work import create_and_start_fine_tune
from worker.routes.route import RouteRequest
from worker.validation import StrictModel

if TYPE_CHECKING:
    from worker.fine_tunes.events import FineTuneEvent
    from worker.fine_tunes.record import FineTune

# Maximum number of fine-tunes in a list, since the status of each is read from files.
MAX_LISTED = 100
# LLM Engine's statuses by OpenAI's. LLM Engine's client accepts no others.
STATUSES = {
    "queued": "PENDING",
    "paused": "PENDING",
    "validating_files": "RUNNING",
    "running": "RUNNING",
    "succeeded": "SUCCESS",
    "failed": "FAILURE",
    "cancelled": "CANCELLED",
}
REPORT_TO_KEY = "report_to"
# Weights & Biases project for metrics of fine-tunes that name no project.
DEFAULT_PROJECT = "llm-engine"


class WandbConfig(WandbOptions):
    """The options for Weights & Biases in a request of LLM Engine's client."""

    project: NonEmptyText = DEFAULT_PROJECT
    api_key: Any = None
    base_url: Any = None


class LLMEngineFineTuneRequest(StrictModel):
    """The body of LLM Engine's request that creates a fine-tune."""

    model: NonEmptyText
    training_file: NonEmptyText
    validation_file: NonEmptyText | None = None
    hyperparameters: dict[str, Any] | None = None
    wandb_config: WandbConfig | None = None
    suffix: Suffix | None = None

    @property
    def as_openai_request(self) -> CreateFineTune:
        """The same request in OpenAI's format.

        The only service for ``report_to`` is Weights & Biases, and only the operator may set its
        API key and its address.
        """
        hyperparameters = dict(self.hyperparameters or {})
        report_to = hyperparameters.pop(REPORT_TO_KEY, None)
        integrations = None
        if report_to == "wandb":
            config = self.wandb_config or WandbConfig()
            for key, setting in (("api_key", "WANDB_API_KEY"), ("base_url", "WANDB_BASE_URL")):
                if getattr(config, key) is not None:
                    message = f"this worker has its own, which its operator sets: {setting}"
                    raise field_error(f"wandb_config.{key}", message)
            options = WandbOptions(**config.model_dump(exclude={"api_key", "base_url"}))
            integrations = [Integration(type="wandb", wandb=options)]
        elif report_to not in (None, "none"):
            raise field_error(f"hyperparameters.{REPORT_TO_KEY}", '"wandb", or nothing')
        return CreateFineTune(
            model=self.model,
            training_file=self.training_file,
            validation_file=self.validation_file,
            hyperparameters=hyperparameters,
            suffix=self.suffix,
            integrations=integrations,
        )


async def create(request: RouteRequest) -> dict[str, Any]:
    """Fine-tune a model."""
    body = LLMEngineFineTuneRequest.from_body(request.body).as_openai_request
    fine_tune, run_with = await create_and_start_fine_tune(body, request)
    return {"id": fine_tune.id, "fine_tune_id": fine_tune.id, **run_with}


async def list_jobs(request: RouteRequest) -> dict[str, Any]:
    """List the newest fine-tunes."""

    def list_newest() -> list[dict[str, Any]]:
        page = request.resources.fine_tunes.list_newest(limit=MAX_LISTED)
        return [_describe(fine_tune, request) for fine_tune in page.data]

    return {"jobs": await asyncio.to_thread(list_newest)}


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a fine-tune, and who runs it."""
    id, fine_tunes = request.path_params["id"], request.resources.fine_tunes
    return await asyncio.to_thread(lambda: _describe(fine_tunes.get_ended_if_due(id), request))


async def cancel(request: RouteRequest) -> dict[str, Any]:
    """Cancel a fine-tune; ``success`` is false if it has already ended."""

    def try_to_cancel() -> bool:
        fine_tune = _find_fine_tune(request)
        try:
            fine_tune.cancel()
        except Conflict:
            return False
        request.resources.fine_tunes.end_if_due(fine_tune)
        return True

    success = await asyncio.to_thread(try_to_cancel)
    request.resources.lines["fine_tune"].wake(request.path_params["id"])
    return {"success": success}


async def list_events(request: RouteRequest) -> dict[str, Any]:
    """List the events of a fine-tune, the oldest first."""
    events = await asyncio.to_thread(lambda: _find_fine_tune(request).events())
    return {"events": [event_object(entry) for entry in events]}


def job_object(fine_tune: "FineTune") -> dict[str, Any]:
    """Return a fine-tune as LLM Engine's job object. Reads files, so call it in a thread."""
    # The result is read after the status and overrides it: a worker may write it in between.
    status, result = fine_tune.status, fine_tune.result
    return {
        "id": fine_tune.id,
        "fine_tune_id": fine_tune.id,
        "fine_tuned_model": result.adapter if result else None,
        "status": STATUSES[result.status if result else status],
    }


def _describe(fine_tune: "FineTune", request: RouteRequest) -> dict[str, Any]:
    return {**job_object(fine_tune), **request.resources.describe_run(fine_tune)}


def event_object(entry: "FineTuneEvent") -> dict[str, Any]:
    return {"timestamp": entry.at, "message": entry.message, "level": entry.level}


def _find_fine_tune(request: RouteRequest) -> "FineTune":
    return request.resources.fine_tunes.get(request.path_params["id"])
