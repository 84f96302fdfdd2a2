"""What calls of LLM Engine's client are refused with."""

import sys
from collections.abc import Callable

Refusal = dict[str, str]


def told(error: Exception) -> Refusal:
    return {"error": type(error).__name__, "message": str(error)}


def refused(call: Callable[[], object]) -> Refusal:
    """Return which exception a call raises, and its message."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # which one it is is the result
        return told(error)
    sys.exit("What should be refused was answered")
