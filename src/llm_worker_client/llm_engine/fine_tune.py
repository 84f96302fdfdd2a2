"""Fine-tunes of the endpoint's model, with LLM Engine's names."""

from typing import Any
from urllib.parse import quote

from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.data_types import (
    CancelFineTuneResponse,
    CreateFineTuneResponse,
    GetFineTuneEventsResponse,
    GetFineTuneResponse,
    ListFineTunesResponse,
)

FINE_TUNES = "/v1/llm/fine-tunes"


class FineTune:
    """Fine-tunes. Errors are those of ``Completion.create``."""

    @classmethod
    def create(
        cls,
        model: str,
        training_file: str,
        validation_file: str | None = None,
        hyperparameters: dict[str, str | int | float] | None = None,
        wandb_config: dict[str, Any] | None = None,
        suffix: str | None = None,
    ) -> CreateFineTuneResponse:
        """Train an adapter of the endpoint's model; the job that does it is handed in."""
        body = {
            "model": model,
            "training_file": training_file,
            "validation_file": validation_file,
            "hyperparameters": hyperparameters,
            "wandb_config": wandb_config,
            "suffix": suffix,
        }
        created = connection.call(connection.post(FINE_TUNES, body))
        return CreateFineTuneResponse.model_validate(created)

    @classmethod
    def get(cls, fine_tune_id: str) -> GetFineTuneResponse:
        """Return how far a fine-tune is."""
        found = connection.call(connection.bare("GET", _of(fine_tune_id)))
        return GetFineTuneResponse.model_validate(found)

    @classmethod
    def get_events(cls, fine_tune_id: str) -> GetFineTuneEventsResponse:
        """Return what happened in a fine-tune."""
        found = connection.call(connection.bare("GET", f"{_of(fine_tune_id)}/events"))
        return GetFineTuneEventsResponse.model_validate(found)

    @classmethod
    def list(cls) -> ListFineTunesResponse:
        """Return all fine-tunes."""
        found = connection.call(connection.bare("GET", FINE_TUNES))
        return ListFineTunesResponse.model_validate(found)

    @classmethod
    def cancel(cls, fine_tune_id: str) -> CancelFineTuneResponse:
        """Cancel a fine-tune."""
        cancelled = connection.call(connection.bare("PUT", f"{_of(fine_tune_id)}/cancel"))
        return CancelFineTuneResponse.model_validate(cancelled)


def _of(fine_tune_id: str) -> str:
    return f"{FINE_TUNES}/{quote(fine_tune_id, safe='')}"
