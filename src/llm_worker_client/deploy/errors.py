"""Errors of a deployment. Their messages are for the user of the command."""

from collections.abc import Sequence
from typing import Any

_ADVICE = {
    401: "the platform does not accept the account key: make a new one in the console",
    403: "the account key may not do this: it needs write access to serverless endpoints",
    429: "too many requests for this account",
}


class DeployError(Exception):
    """A deployment failed. The message contains no secrets that this tool knows."""


class PlanError(DeployError):
    """A plan, an option or an argument is invalid. The message lists all mistakes."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))


class NoEndpoint(DeployError):
    """No endpoint has this name or id, or the endpoint has no worker."""


class NoResponse(DeployError):
    """The platform sent no usable response, so the outcome of the request is unknown."""


class EndpointUnhealthy(DeployError):
    """An endpoint did not answer a test job, or its workers stay unhealthy."""


class ApiError(DeployError):
    """An error response of the platform, with its details (RFC 9457) in the message.

    ``request`` has the method and the path. ``body`` is None if it is not JSON.
    """

    def __init__(self, request: str, status: int, body: Any, retry_after_s: float | None) -> None:
        details = body if isinstance(body, dict) else {}
        reason = ": ".join(str(details[key]) for key in ("title", "detail") if details.get(key))
        lines = [f"{request}: {status} {reason}".rstrip()]
        if advice := _ADVICE.get(status):
            lines.append(f"  {advice}")
        if retry_after_s is not None:
            lines.append(f"  try again in {retry_after_s:g} s")
        if isinstance(errors := details.get("errors"), list):
            lines += [f"  {error}" for error in errors]
        super().__init__("\n".join(lines))
        self.status = status
        self.retry_after_s = retry_after_s
