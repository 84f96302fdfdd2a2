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

    def crashed(self, newcomers: Iterable[str], running: Iterable[str]) -> None:
        """Take note of a core that has ended itself, or hung; newcomers had no output yet."""
        self._newcomers = _counted_on(self._newcomers, newcomers)
        self._running = _counted_on(self._running, {*self._newcomers, *running})

    def is_killer(self, request_id: str) -> bool:
        """Whether the last crash was this request's doing, as far as can be told."""
        likeliest = self._likeliest
        return len(likeliest) == 1 and belongs(likeliest[0], request_id)

    def is_suspect(self, request_id: str) -> bool:
        """Whether it is one of several that may have caused the last crash."""
        return any(belongs(id_, request_id) for id_ in self._likeliest)

    @property
    def _likeliest(self) -> list[str]:
        """The newcomers of most crashes; without any, all that ran in most, but at least two."""
        of_running = {id_: count for id_, count in self._running.items() if count > 1}
        counts = self._newcomers or of_running
        most = max(counts.values(), default=0)
        return [id_ for id_, count in counts.items() if count == most]


def _counted_on(before: Counter[str], ids: Iterable[str]) -> Counter[str]:
    return Counter({id_: before[id_] + 1 for id_ in ids})


def belongs(id_: str, request_id: str) -> bool:
    """Return whether an id of vLLM's is that of a caller's request, or of a part of it."""
    before, found, after = id_.partition(request_id)
    return bool(found) and before[-1:] in ("", "-", "_") and after[:1] in ("", "-", "_")
