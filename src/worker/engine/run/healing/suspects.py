"""Tracks the requests that may have killed a core."""

from collections import Counter
from collections.abc import Iterable


class Suspects:
    """The requests that may have caused the crashes of cores.

    A request without output at the time of a crash is new. Requests are identified by vLLM's own
    ids, such as "chatcmpl-" + the caller's request id.
    """

    def __init__(self) -> None:
        # For each request that was new in the last crash: the number of such crashes in a row.
        self._new_counts: Counter[str] = Counter()
        # For each request that was unfinished in the last crash: the number of such crashes in a
        # row.
        self._running_counts: Counter[str] = Counter()

    def record_crash(self, new_ids: Iterable[str], running_ids: Iterable[str]) -> None:
        """Record a crash or a hang, with the ids of the requests without and with output."""
        self._new_counts = _count_consecutive_crashes(self._new_counts, new_ids)
        self._running_counts = _count_consecutive_crashes(
            self._running_counts, {*self._new_counts, *running_ids}
        )

    def is_killer(self, request_id: str) -> bool:
        """Return whether this request alone is the most likely cause of the last crash."""
        top_suspects = self._top_suspect_ids
        return len(top_suspects) == 1 and is_id_of_request(top_suspects[0], request_id)

    def is_suspect(self, request_id: str) -> bool:
        """Return whether this request is one of the most likely causes of the last crash."""
        return any(is_id_of_request(id_, request_id) for id_ in self._top_suspect_ids)

    @property
    def _top_suspect_ids(self) -> list[str]:
        """The requests that were new in the most crashes in a row.

        If none was new: those that were unfinished in the most crashes in a row, in at least two.
        """
        repeated = {id_: count for id_, count in self._running_counts.items() if count > 1}
        counts = self._new_counts or repeated
        highest = max(counts.values(), default=0)
        return [id_ for id_, count in counts.items() if count == highest]


def _count_consecutive_crashes(previous: Counter[str], ids: Iterable[str]) -> Counter[str]:
    return Counter({id_: previous[id_] + 1 for id_ in ids})


def is_id_of_request(engine_id: str, request_id: str) -> bool:
    """Return whether vLLM's id is the id of a caller's request, or of a part of it."""
    prefix, match, suffix = engine_id.partition(request_id)
    return bool(match) and prefix[-1:] in ("", "-", "_") and suffix[:1] in ("", "-", "_")
