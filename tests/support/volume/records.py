"""Records of long work on a volume."""

from typing import Any

from worker.long_work.records import Records, RecordT


def all_records(records: Records[RecordT, Any]) -> list[RecordT]:
    """Return all records of one kind, oldest first."""
    page = records.list_newest(limit=1_000)
    assert not page.has_more
    return list(reversed(page.data))
