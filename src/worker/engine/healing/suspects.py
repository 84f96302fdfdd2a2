"""Which requests may have killed a core; pure."""

from collections import Counter
from collections.abc import Iterable


class Suspects:
    """What the deaths of cores tell about the requests that they had.

    A request that a core had just begun is a newcomer. vLLM's own ids name requests here; a
    caller's request id is a part of them: "chatcmpl-" + id.
    """

    def __init__(self) -> None:
        # Newcomers of the last crash, and of how many crashes in a row they were.
        self._newcomers: Counter[str] = Counter()
        # All that ran then, and in how many crashes in a row.
        self._running: Counter[str] = Counter()
        self._killer: str | None = None

    def crashed(self, newcomers: Iterable[str], running: Iterable[str]) -> None:
        """Take note of a core that has ended itself, or hung.

        Args:
            newcomers: requests that had no output yet.
            running: all others.
        """
        before, self._newcomers = self._newcomers, Counter()
        self._newcomers.update({id_: before[id_] + 1 for id_ in newcomers})
        ran, self._running = self._running, Counter()
        self._running.update({id_: ran[id_] + 1 for id_ in {*self._newcomers, *running}})
        most = max(self._newcomers.values(), default=0)
        likeliest = [id_ for id_, count in self._newcomers.items() if count == most]
        self._killer = likeliest[0] if len(likeliest) == 1 else None

    def is_killer(self, request_id: str) -> bool:
        """Whether the last crash was this request's doing, as far as can be told."""
        return self._killer is not None and belongs(self._killer, request_id)

    def is_suspect(self, request_id: str) -> bool:
        """Whether it was one of several newcomers of the last crash."""
        return any(belongs(id_, request_id) for id_ in self._newcomers)

    def crashes(self, request_id: str) -> int:
        """Return in how many crashes in a row this request has been."""
        return max(
            (count for id_, count in self._running.items() if belongs(id_, request_id)), default=0
        )


def belongs(id_: str, request_id: str) -> bool:
    """Return whether an id of vLLM's is that of a caller's request, or of a part of it."""
    before, found, after = id_.partition(request_id)
    return bool(found) and before[-1:] in ("", "-", "_") and after[:1] in ("", "-", "_")
