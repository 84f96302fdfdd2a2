"""What was asked of a batch, as the volume keeps it."""

import time
from typing import Any, Literal

from pydantic import Field

from worker.job.batch import BatchRequest
from worker.volume import record


class Kept(BatchRequest, record.Kept):
    """A request as the volume keeps it.

    Args:
        form: what the output is: OpenAI's two files, or one array of Scale LLM Engine's.
        extra: what else the form needs.
        lasts_s: seconds until it expires, where these are no whole hours.
    """

    input_file_id: str
    form: Literal["openai", "llm_engine_v1", "llm_engine_v2"] = "openai"
    extra: dict[str, Any] = Field(default_factory=dict)
    lasts_s: int | None = None

    @property
    def expires_at(self) -> int:
        return self.created_at + (self.lasts_s or self.window_s)


def kept(request: BatchRequest, batch_id: str, input_file_id: str) -> Kept:
    """Return a request for OpenAI's form of a batch that begins now."""
    shared = {name: getattr(request, name) for name in BatchRequest.model_fields}
    created_at = int(time.time())
    return Kept(**shared, id=batch_id, input_file_id=input_file_id, created_at=created_at)
