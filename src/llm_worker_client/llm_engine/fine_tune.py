"""LLM Engine's class ``FineTune``, for the fine-tunes of an endpoint."""

from typing import Any
from urllib.parse import quote

from llm_worker_client.llm_engine.connection import call
from llm_worker_client.llm_engine.data_types import (
    CancelFineTuneResponse,
    CreateFineTuneResponse,
    GetFineTuneEventsResponse,
    GetFineTuneResponse,
    ListFineTunesResponse,
)

FINE_TUNES_PATH = "/v1/llm/fine-tunes"


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
        """Create a fine-tune of the endpoint's model and submit the job that trains an adapter."""
        body = {name: value for name, value in locals().items() if name != "cls"}
        return CreateFineTuneResponse.model_validate(call("POST", FINE_TUNES_PATH, body))

    @classmethod
    def get(cls, fine_tune_id: str) -> GetFineTuneResponse:
        """Return the status of a fine-tune."""
        return GetFineTuneResponse.model_validate(call("GET", _fine_tune_url(fine_tune_id)))

    @classmethod
    def get_events(cls, fine_tune_id: str) -> GetFineTuneEventsResponse:
        """Return the events of a fine-tune."""
        events = call("GET", f"{_fine_tune_url(fine_tune_id)}/events")
        return GetFineTuneEventsResponse.model_validate(events)

    @classmethod
    def list(cls) -> ListFineTunesResponse:
        """Return all fine-tunes."""
        return ListFineTunesResponse.model_validate(call("GET", FINE_TUNES_PATH))

    @classmethod
    def cancel(cls, fine_tune_id: str) -> CancelFineTuneResponse:
        """Cancel a fine-tune."""
        response = call("PUT", f"{_fine_tune_url(fine_tune_id)}/cancel")
        return CancelFineTuneResponse.model_validate(response)


def _fine_tune_url(fine_tune_id: str) -> str:
    return f"{FINE_TUNES_PATH}/{quote(fine_tune_id, safe='')}"
