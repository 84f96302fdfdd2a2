"""The documentation of each setting, from which all listings are generated.

Types, defaults and choices are not written here. ``Settings`` has them for the worker's own
settings, and the parser of the installed vLLM for its options. Examples are in
``worker.settings.examples``.
"""

from table.answers import ANSWER_ROWS
from table.engine import ENGINE_ROWS
from table.libraries import LIBRARY_ROWS
from table.model import MODEL_ROWS
from table.operation import OPERATION_ROWS
from table.row import LIBRARIES, SECTIONS, Row
from worker.settings.names import canonical_name

__all__ = ["LIBRARIES", "ROWS", "SECTIONS", "Row", "row"]

ROWS: tuple[Row, ...] = tuple(
    sorted(
        (*MODEL_ROWS, *ENGINE_ROWS, *ANSWER_ROWS, *OPERATION_ROWS, *LIBRARY_ROWS),
        key=lambda row: SECTIONS.index(row.section),
    )
)

_BY_NAME = {row.name: row for row in ROWS}


def row(name: str) -> Row | None:
    """Return a setting's row by any of the setting's names; None if the table has no such row."""
    return _BY_NAME.get(canonical_name(name))
