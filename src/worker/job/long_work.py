"""Work that lasts longer than a request: jobs run it, one after the other, until it is done."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

# The key of a job's input that runs such work, and what the log calls it.
Kind = Literal["batch", "fine_tune"]
_NAMES: dict[Kind, str] = {"batch": "batch", "fine_tune": "fine-tune"}

# Seconds that one job may take for it.
Runtime = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class LongWork:
    """Some work on the volume, by the id that it has there."""

    kind: Kind
    id: str

    def __str__(self) -> str:
        return f"{_NAMES[self.kind]} {self.id}"

    def input(self, **more: Any) -> dict[str, Any]:
        """Return the input of the job that goes on with it; ``max_runtime_sec`` may be given."""
        return {self.kind: {"id": self.id, **more}}

    @property
    def run_with(self) -> dict[str, Any]:
        """What to tell a caller who has to send that job."""
        return {"run_with": {"input": self.input()}}
