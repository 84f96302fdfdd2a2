"""The body of /run and /runsync: an input, and optionally a webhook and a policy."""

from typing import Any

from pydantic import BaseModel, Field, HttpUrl

from emulator.limits import EXECUTION_TIMEOUT_MS, TTL_MS


def _within(bounds: tuple[int, int], alias: str) -> Any:
    return Field(None, ge=bounds[0], le=bounds[1], alias=alias)


class Policy(BaseModel):
    """A job's execution policy; None: the endpoint's default."""

    execution_timeout_ms: int | None = _within(EXECUTION_TIMEOUT_MS, "executionTimeout")
    ttl_ms: int | None = _within(TTL_MS, "ttl")
    # Checked only: it is about scaling, which the emulator does not do.
    low_priority: bool = Field(default=False, alias="lowPriority")


class Payload(BaseModel):
    """The checked keys of the body; all others, and the input, reach the worker unchecked."""

    webhook: HttpUrl | None = None
    policy: Policy | None = None
