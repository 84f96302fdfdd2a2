"""Batches as callers ask for them: jobs that run one, and requests that create one."""

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from worker.job.base import LongJob, Runtime
from worker.validation import Metadata, Strict

HOUR_S = 3600
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
LONGEST_WINDOW_S = 14 * 24 * HOUR_S

Seconds = Annotated[int, Field(ge=HOUR_S, le=30 * 24 * HOUR_S)]


class ExpiresAfter(Strict):
    """When a file expires, as OpenAI's API writes it."""

    anchor: Literal["created_at"]
    seconds: Seconds


class BatchRequest(Strict):
    """What a batch is to do.

    Args:
        endpoint: the URL that all lines have.
        completion_window: from the creation to the expiry: "24h", "7d".
        metadata: the caller's own, at most 16 pairs.
        output_expires_after: for the files that it writes.
        data_parallelism: how many jobs are to share the lines.
    """

    endpoint: str
    completion_window: str = "24h"
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    data_parallelism: Annotated[int, Field(ge=1, le=64)] = 1

    @field_validator("completion_window")
    @classmethod
    def _window(cls, text: str) -> str:
        if not 0 < _seconds(text) <= LONGEST_WINDOW_S:
            raise ValueError("hours or days, at most 14 days: 24h, 7d")
        return text

    @property
    def window_s(self) -> int:
        return _seconds(self.completion_window)


class CreateBatch(BatchRequest):
    """A request for a batch of a file that is there: the body of ``POST /v1/batches``."""

    input_file_id: str


class BatchSpec(BatchRequest):
    """A batch as a job has it: one to create, of a file, a path or lines, or one to go on with.

    Args:
        id: of a batch that is there; then nothing else is given, but for the time.
        requests: the lines themselves.
        input_path: of a file on the volume.
        max_runtime_sec: the most that this job may take.
    """

    endpoint: str = ""
    id: str | None = None
    input_file_id: str | None = None
    requests: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    input_path: str | None = None
    max_runtime_sec: Runtime | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = (self.id, self.input_file_id, self.requests, self.input_path)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("one of id, input_file_id, requests and input_path")
        if self.id is not None:
            if self.model_fields_set - {"id", "max_runtime_sec"}:
                raise ValueError("a batch that is there goes on with its id alone")
        elif not self.endpoint:
            raise ValueError("endpoint: the URL of the lines")
        return self


class BatchJob(LongJob):
    """A job that runs a batch."""

    kind: ClassVar[str] = "batch"
    marks: ClassVar[frozenset[str]] = frozenset({kind})

    batch: BatchSpec


def _seconds(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    return int(found[1]) * {"h": HOUR_S, "d": 24 * HOUR_S}[found[2]] if found else 0
