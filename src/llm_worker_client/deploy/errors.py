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
    """A plan that can't be carried out.

    Args:
        mistakes: one text each.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


class NotFoundError(DeployError):
    """There is no endpoint of that name."""


class ExistsError(DeployError):
    """There is an endpoint of that name, or more than one."""


class Unreachable(DeployError):
    """The platform did not answer; whether a request was carried out is not known."""


class Unhealthy(DeployError):
    """An endpoint did not answer its first chat."""


class Problem(DeployError):
    """An answer of the platform that refuses a request (RFC 9457).

    Args:
        call: the request's verb and path.
        status: of HTTP.
        body: the answer, as far as it is JSON.
        retry_after_s: when the platform would take the request, if it says so.
    """

    def __init__(
        self, call: str, status: int, body: Any = None, retry_after_s: float | None = None
    ) -> None:
        known = body if isinstance(body, dict) else {}
        listed = known.get("errors")
        self.status = status
        self.title = str(known.get("title") or "")
        self.detail = str(known.get("detail") or "")
        self.errors = tuple(map(str, listed)) if isinstance(listed, list) else ()
        self.retry_after_s = retry_after_s
        super().__init__(self._message(call))

    def _message(self, call: str) -> str:
        said = ": ".join(filter(None, (self.title, self.detail)))
        text = f"{call}: {self.status}" + (f" {said}" if said else "")
        if advice := _ADVICE.get(self.status):
            text += f"\n  {advice}"
        if self.retry_after_s is not None:
            text += f"\n  try again in {self.retry_after_s:g} s"
        return "\n".join([text, *(f"  {error}" for error in self.errors)])
