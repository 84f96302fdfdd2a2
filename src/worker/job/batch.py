"""Inputs for batches: jobs that run a batch, and requests that create one."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from worker.job.base import ContinueOptions, LongJob
from worker.validation import Metadata, StrictModel

HOUR_S = 3600
_WINDOW_PATTERN = re.compile(r"([1-9]\d{0,3})([hd])")
MAX_WINDOW_S = 14 * 24 * HOUR_S

ExpirySeconds = Annotated[int, Field(ge=HOUR_S, le=30 * 24 * HOUR_S)]


class ExpiresAfter(StrictModel):
    """The expiry of a file in the format of OpenAI's API."""

    anchor: Literal["created_at"]
    seconds: ExpirySeconds


class BatchRequest(StrictModel):
    """The parameters of a batch."""

    endpoint: str  # the route of all lines
    completion_window: str = "24h"  # from creation to expiry, such as "24h" or "7d"
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None  # for the files that the batch writes
    data_parallelism: Annotated[int, Field(ge=1, le=64)] = 1  # jobs that share the lines

    @field_validator("completion_window")
    @classmethod
    def _check_window(cls, text: str) -> str:
        if not 0 < _parse_window(text) <= MAX_WINDOW_S:
            raise ValueError("hours or days, at most 14 days: 24h, 7d")
        return text

    @property
    def window_s(self) -> int:
        return _parse_window(self.completion_window)


class CreateBatch(BatchRequest):
    """A request for a batch of an uploaded file: the body of ``POST /v1/batches``."""

    input_file_id: str


class BatchSpec(BatchRequest, ContinueOptions):
    """The batch of a job: a new one from a file, a path or lines, or an existing one to continue.

    With the ``id`` of an existing batch, only the keys of ``ContinueOptions`` may be set.
    """

    endpoint: str = ""
    id: str | None = None
    input_file_id: str | None = None
    requests: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None  # lines as objects
    input_path: str | None = None  # on the volume

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        sources = (self.id, self.input_file_id, self.requests, self.input_path)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("one of id, input_file_id, requests and input_path")
        if self.id is not None:
            if self.model_fields_set - {"id", *ContinueOptions.model_fields}:
                raise ValueError("an existing batch is continued with its id alone")
        elif self.passes or self.background:
            raise ValueError("passes, background: only with id")
        elif not self.endpoint:
            raise ValueError("endpoint: the URL of the lines")
        return self


class BatchJob(LongJob):
    """A job that runs a batch."""

    kind: ClassVar[str] = "batch"
    marker_keys: ClassVar[frozenset[str]] = frozenset({kind})

    batch: BatchSpec


def _parse_window(window: str) -> int:
    match = _WINDOW_PATTERN.fullmatch(window)
    return int(match[1]) * {"h": HOUR_S, "d": 24 * HOUR_S}[match[2]] if match else 0
