"""What each setting is for, in the words of the documentation: the source of all listings.

Types, defaults and choices are not written here: ``Settings`` has those of the worker's own, and
the installed vLLM's parser those of its options.
"""

from worker.settings.names import plain
from worker.settings.table_model import MODEL_ROWS
from worker.settings.table_own import LIBRARY_ROWS, OWN_ROWS
from worker.settings.table_row import SECTIONS, Row
from worker.settings.table_serving import SERVING_ROWS
from worker.settings.table_system import SYSTEM_ROWS

__all__ = ["ROWS", "Row", "example", "row"]

ROWS: tuple[Row, ...] = tuple(
    sorted(
        (*OWN_ROWS, *MODEL_ROWS, *SYSTEM_ROWS, *SERVING_ROWS, *LIBRARY_ROWS),
        key=lambda row: SECTIONS.index(row.section),
    )
)

_BY_NAME = {row.name: row for row in ROWS}


def row(name: str) -> Row | None:
    """Look a setting up by any of its names; none of those that the table does not explain."""
    return _BY_NAME.get(plain(name))


def example(name: str) -> str | None:
    """Give a value that is accepted, where the one of all settings of its type would mislead."""
    found = row(name)
    return found.example or None if found else None
