"""How batches end, as their directories keep it."""

import time
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel

from worker.batches.parts import Finished

# A batch fails before its first line, or when its input is no more the one that was checked.
End = Literal["completed", "expired", "cancelled", "failed"]


def mistake(
    code: str, message: str, param: str | None = None, line: int | None = None
) -> dict[str, Any]:
    """Return an item of OpenAI's ``errors`` of a batch."""
    return {"code": code, "message": message, "param": param, "line": line}


INPUT_CHANGED = mistake(
    "input_changed", "the input has changed or was removed since the batch began"
)


class Failed(BaseModel):
    """Why a batch's input is refused: OpenAI's ``errors``."""

    failed_at: int
    mistakes: list[dict[str, Any]]


class Ending(BaseModel):
    """How a batch is to end, decided once: whoever carries it out writes the same files.

    Args:
        output_file_id: of the output, if there is one; ``error_file_id``: likewise.
        cut: the lines that count: see ``parts.finished``.
    """

    status: End
    at: int
    output_file_id: str
    error_file_id: str
    cut: dict[str, int]


class Result(BaseModel):
    """How a batch ended; a file that would be empty is None.

    Args:
        mistake: why it failed, if that is not ``INPUT_CHANGED``.
    """

    status: End
    mistake: dict[str, Any] | None = None
    at: int
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


def counted(lines: Iterable[Finished], total: int) -> Result:
    """Return a result that has only the counts of finished lines."""
    result = Result(status="completed", at=int(time.time()), total=total)
    for line in lines:
        result.failed += line.failed
        result.completed += not line.failed
        result.prompt_tokens += line.prompt_tokens
        result.output_tokens += line.output_tokens
    return result
