"""What can go wrong with a deployment, in words for whoever runs the command."""

from collections.abc import Sequence
from typing import Any

_ADVICE = {
    401: "the platform does not accept the account key: make a new one in the console",
    403: "the account key may not do this: it needs write access to serverless endpoints",
    429: "too many requests for this account",
}


class DeployError(Exception):
    """A deployment that can't go on; ``str`` is a message without secrets of this tool."""


class PlanError(DeployError):
    """A plan that can't be carried out, with all its mistakes."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))


class NoEndpoint(DeployError):
    """There is no endpoint of that name."""


class ExistsError(DeployError):
    """There is an endpoint of that name, or more than one."""


class NoAnswer(DeployError):
    """The platform did not answer; whether a request was carried out is not known."""


class Unhealthy(DeployError):
    """An endpoint did not answer its first chat."""


class Problem(DeployError):
    """An answer of the platform that refuses a request (RFC 9457)."""

    def __init__(self, call: str, status: int, body: Any, retry_after_s: float | None) -> None:
        known = body if isinstance(body, dict) else {}
        reason = ": ".join(str(known[key]) for key in ("title", "detail") if known.get(key))
        lines = [f"{call}: {status} {reason}".rstrip()]
        if advice := _ADVICE.get(status):
            lines.append(f"  {advice}")
        if retry_after_s is not None:
            lines.append(f"  try again in {retry_after_s:g} s")
        if isinstance(errors := known.get("errors"), list):
            lines += [f"  {error}" for error in errors]
        super().__init__("\n".join(lines))
        self.status = status
        self.retry_after_s = retry_after_s
