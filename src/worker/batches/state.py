"""One batch on the volume: what was asked, how far it is, how it ended; its files are its state."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from worker.batches.lines import Plan
from worker.batches.parts import finished
from worker.batches.request import Kept
from worker.errors import Conflict, NoSuchObject
from worker.volume import failures, write_once

# Files in a batch's directory.
REQUEST, PLAN, FAILED = "request.json", "plan.json", "failed.json"
CANCEL, FINALIZING, RESULT = "cancel.json", "finalizing.json", "result.json"
PARTS, DONE, LEASES = "parts", "done", "leases"

End = Literal["completed", "expired", "cancelled"]

Model = TypeVar("Model", bound=BaseModel)


class Failed(BaseModel):
    """Why a batch's input is refused: OpenAI's ``errors``."""

    failed_at: int
    mistakes: list[dict[str, Any]]


class Moment(BaseModel):
    """When something began, in seconds since 1970."""

    at: int


class Result(BaseModel):
    """How a batch ended; a file that would be empty is None."""

    status: End
    at: int
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Batch:
    """One batch's directory. Its methods read and write files: call them in threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name

    @property
    def request(self) -> Kept:
        """What was asked.

        Raises:
            NoSuchObject: there is no such batch.
        """
        if (found := self.read(REQUEST, Kept)) is None:
            raise NoSuchObject(f"There is no batch {self.id!r}.")
        return found

    @property
    def created_at(self) -> int:
        return self.request.created_at

    @property
    def plan(self) -> Plan | None:
        return self.read(PLAN, Plan)

    @property
    def result(self) -> Result | None:
        return self.read(RESULT, Result)

    @property
    def parts(self) -> Path:
        return self.directory / PARTS

    def read(self, name: str, model: type[Model]) -> Model | None:
        """Return what a file holds; None: it is not there."""
        with failures():
            try:
                content = (self.directory / name).read_bytes()
            except FileNotFoundError:
                return None
        return model.model_validate_json(content)

    def write(self, name: str, value: BaseModel) -> bool:
        """Write a file once; return whether it was not there."""
        with failures():
            return write_once(self.directory / name, value.model_dump_json().encode())

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def ended(self) -> bool:
        return self.has(RESULT) or self.has(FAILED)

    def stopping(self) -> Literal["cancelled", "expired"] | None:
        """Return why no further line is to be answered, if so."""
        if self.has(CANCEL):
            return "cancelled"
        return "expired" if time.time() >= self.request.expires_at else None

    def finish_shard(self, index: int) -> None:
        with failures():
            write_once(self.directory / DONE / str(index), b"")

    def shards_left(self, plan: Plan) -> list[int]:
        """Return which shards have lines without an answer."""
        done = self.directory / DONE
        return [index for index in range(len(plan.shards)) if not (done / str(index)).exists()]

    def leases(self, name: str) -> Path:
        """Return the directory of the lease of a piece of the work."""
        return self.directory / LEASES / name

    def held(self) -> bool:
        """Return whether a worker may be at work: a dead one's leases stay for a while."""
        return any(self.directory.glob(f"{LEASES}/*/lease-*"))

    def cancel(self) -> None:
        """Ask whoever runs it to stop.

        Raises:
            Conflict: it has ended.
        """
        request = self.request
        if self.ended():
            status = self.shown()["status"]
            raise Conflict(f"The batch {request.id!r} is {status}, and can't be cancelled.")
        self.write(CANCEL, Moment(at=_now()))

    def counts(self) -> Result:
        """Count what is durable, and what the batch has to do."""
        found = self.result
        if found is not None:
            return found
        plan = self.plan
        with failures():
            lines = finished(self.parts).values() if plan else []
        return counted(lines, plan.total if plan else 0)

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's Batch object."""
        request, plan = self.request, self.plan
        failed, result = self.read(FAILED, Failed), self.result
        cancel, finalizing = self.read(CANCEL, Moment), self.read(FINALIZING, Moment)
        counts = result or self.counts()
        status = self._status(failed, result, cancel, finalizing)
        at = {result.status: result.at} if result else {}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": request.endpoint,
            "errors": failed and {"object": "list", "data": failed.mistakes},
            "input_file_id": request.input_file_id,
            "completion_window": request.completion_window,
            "status": status,
            "output_file_id": result and result.output_file_id,
            "error_file_id": result and result.error_file_id,
            "created_at": request.created_at,
            "in_progress_at": plan and plan.made_at,
            "expires_at": request.expires_at,
            "finalizing_at": finalizing and finalizing.at,
            "completed_at": at.get("completed"),
            "failed_at": failed and failed.failed_at,
            "expired_at": at.get("expired"),
            "cancelling_at": cancel and cancel.at,
            "cancelled_at": at.get("cancelled"),
            "request_counts": {
                "total": counts.total,
                "completed": counts.completed,
                "failed": counts.failed,
            },
            "usage": _usage(counts),
            "metadata": request.metadata,
        }

    def _status(
        self,
        failed: Failed | None,
        result: Result | None,
        cancel: Moment | None,
        finalizing: Moment | None,
    ) -> str:
        if result:
            return result.status
        if failed:
            return "failed"
        if cancel:
            return "cancelling"
        if finalizing:
            return "finalizing"
        return "in_progress" if self.has(PLAN) else "validating"


def counted(lines: Iterable[Any], total: int) -> Result:
    """Return a result that has only the counts of finished lines."""
    result = Result(status="completed", at=_now(), total=total)
    for line in lines:
        result.failed += line.failed
        result.completed += not line.failed
        result.prompt_tokens += line.prompt_tokens
        result.output_tokens += line.output_tokens
    return result


def _usage(counts: Result) -> Mapping[str, Any]:
    prompt, output = counts.prompt_tokens, counts.output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


def _now() -> int:
    return int(time.time())
