"""Fine-tunes as LLM Engine's client asks for them and reads them."""

from typing import Any

from worker.errors import InvalidInput
from worker.fine_tunes.events import events
from worker.fine_tunes.state import FineTune
from worker.job.fine_tune import CreateFineTune, Integration, Name, Suffix, Wandb
from worker.validation import Strict

# OpenAI's status -> LLM Engine's. Its client knows no other words than these and UNDEFINED.
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
        values = config.model_dump(exclude={"api_key", "base_url"}, exclude_none=True)
        return Integration(type="wandb", wandb=Wandb(**values))


def job(fine_tune: FineTune) -> dict[str, Any]:
    """Return a fine-tune as LLM Engine's client reads it. Reads files: for threads."""
    status, result = fine_tune.status, fine_tune.result
    return {
        "id": fine_tune.id,
        "fine_tune_id": fine_tune.id,
        "fine_tuned_model": result.adapter if result else None,
        "status": STATUSES.get(result.status if result else status, "UNDEFINED"),
    }


def told(fine_tune: FineTune) -> list[dict[str, Any]]:
    """Return the events of a fine-tune, the oldest first. Reads files: for threads."""
    return [
        {"timestamp": one.at, "message": one.message, "level": one.level}
        for one in events(fine_tune)
    ]
