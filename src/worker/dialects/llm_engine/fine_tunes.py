"""Fine-tunes of LLM Engine's; they are OpenAI's fine-tuning jobs.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from worker.errors import Conflict, InvalidInput
from worker.job.fine_tune import CreateFineTune, Integration, Name, Suffix, Wandb
from worker.routes.long_work import create_fine_tune
from worker.routes.route import Asked
from worker.validation import Strict

if TYPE_CHECKING:
    from worker.fine_tunes.events import Told
    from worker.fine_tunes.record import FineTune

# Fine-tunes in a list: to tell how far each is takes a look at its files.
MOST_LISTED = 100
# OpenAI's status -> LLM Engine's. Its client knows no other words than these.
STATUSES = {
    "queued": "PENDING",
    "paused": "PENDING",
    "validating_files": "RUNNING",
    "running": "RUNNING",
    "succeeded": "SUCCESS",
    "failed": "FAILURE",
    "cancelled": "CANCELLED",
}
REPORT_TO = "report_to"
# Where metrics go that name no project.
PROJECT = "llm-engine"


class WandbConfig(Wandb):
    """What LLM Engine's client says of Weights & Biases."""

    project: Name = PROJECT
    api_key: Any = None
    base_url: Any = None


class Create(Strict):
    """The body of a request for a fine-tune."""

    model: Name
    training_file: Name
    validation_file: Name | None = None
    hyperparameters: dict[str, Any] | None = None
    wandb_config: WandbConfig | None = None
    suffix: Suffix | None = None

    @property
    def as_openais(self) -> CreateFineTune:
        """The same request in OpenAI's words.

        Raises:
            InvalidInput: metrics are to go where they can't.
        """
        given = dict(self.hyperparameters or {})
        report_to = given.pop(REPORT_TO, None)
        if report_to not in (None, "none", "wandb"):
            field = f"hyperparameters.{REPORT_TO}"
            raise InvalidInput(f'{field}: "wandb", or nothing', param=field)
        return CreateFineTune(
            model=self.model,
            training_file=self.training_file,
            validation_file=self.validation_file,
            hyperparameters=given,
            suffix=self.suffix,
            integrations=[self._integration()] if report_to == "wandb" else None,
        )

    def _integration(self) -> Integration:
        config = self.wandb_config or WandbConfig()
        for key, setting in (("api_key", "WANDB_API_KEY"), ("base_url", "WANDB_BASE_URL")):
            if getattr(config, key) is not None:
                field = f"wandb_config.{key}"
                message = f"this worker has its own, which its operator sets: {setting}"
                raise InvalidInput(f"{field}: {message}", param=field)
        values = config.model_dump(exclude={"api_key", "base_url"})
        return Integration(type="wandb", wandb=Wandb(**values))


async def create(asked: Asked) -> dict[str, Any]:
    """Fine-tune a model (LLM Engine's)."""
    request = Create.of_body(asked.body).as_openais
    fine_tune, to_send = await create_fine_tune(request, asked)
    return {"id": fine_tune.id, "fine_tune_id": fine_tune.id, **to_send}


async def list_jobs(asked: Asked) -> dict[str, Any]:
    """List the newest fine-tunes (LLM Engine's)."""

    def newest() -> list[dict[str, Any]]:
        return [job(one) for one in reversed(asked.resources.fine_tunes.all()[-MOST_LISTED:])]

    return {"jobs": await asyncio.to_thread(newest)}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a fine-tune (LLM Engine's)."""
    id, fine_tunes = asked.parameters["id"], asked.resources.fine_tunes
    return await asyncio.to_thread(lambda: job(fine_tunes.get_settled(id)))


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a fine-tune; one that has ended is none any more, without success (LLM Engine's)."""

    def try_to_cancel() -> bool:
        fine_tune = _find(asked)
        try:
            fine_tune.cancel()
        except Conflict:
            return False
        asked.resources.fine_tunes.settle(fine_tune)
        return True

    return {"success": await asyncio.to_thread(try_to_cancel)}


async def list_events(asked: Asked) -> dict[str, Any]:
    """List what a fine-tune has told, the oldest first (LLM Engine's)."""
    told = await asyncio.to_thread(lambda: _find(asked).events())
    return {"events": [event(one) for one in told]}


def job(fine_tune: "FineTune") -> dict[str, Any]:
    """Return a fine-tune as LLM Engine's client reads it. Reads files: for threads."""
    # The result last: it decides about the status.
    status, result = fine_tune.status, fine_tune.result
    return {
        "id": fine_tune.id,
        "fine_tune_id": fine_tune.id,
        "fine_tuned_model": result.adapter if result else None,
        "status": STATUSES[result.status if result else status],
    }


def event(told: "Told") -> dict[str, Any]:
    """Return an event of a fine-tune as LLM Engine's client reads it."""
    return {"timestamp": told.at, "message": told.message, "level": told.level}


def _find(asked: Asked) -> "FineTune":
    return asked.resources.fine_tunes.get(asked.parameters["id"])
