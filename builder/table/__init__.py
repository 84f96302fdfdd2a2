"""The documentation of each setting, from which all listings are generated.

Types, defaults and choices are not written here. ``Settings`` has them for the worker's own
settings, and the parser of the installed vLLM for its options. Examples are in
``worker.settings.examples``.
"""

from table.answers import ANSWER_ROWS, LORA_ROWS, MEDIA_ROWS, STREAM_ROWS, TOOL_ROWS
from table.engine import LIFE_ROWS, SPEED_ROWS
from table.libraries import LIBRARY_ROWS
from table.model import MEMORY_ROWS, MODEL_ROWS
from table.operation import LOG_ROWS, OTHER_ROWS, SECURITY_ROWS, WORK_ROWS
from table.row import LIBRARIES, Row
from worker.settings.names import canonical_name

__all__ = ["LIBRARIES", "ROWS", "SECTIONS", "Row", "row"]

# In the order of the page, by an operator's goals.
ROWS: tuple[Row, ...] = (
    *MODEL_ROWS,
    *MEMORY_ROWS,
    *SPEED_ROWS,
    *ANSWER_ROWS,
    *STREAM_ROWS,
    *TOOL_ROWS,
    *MEDIA_ROWS,
    *LORA_ROWS,
    *WORK_ROWS,
    *SECURITY_ROWS,
    *LOG_ROWS,
    *LIFE_ROWS,
    *OTHER_ROWS,
    *LIBRARY_ROWS,
)
SECTIONS = tuple(dict.fromkeys(row.section for row in ROWS))

_BY_NAME = {row.name: row for row in ROWS}


def row(name: str) -> Row | None:
    """Return a setting's row by any of the setting's names; None if the table has no such row."""
    return _BY_NAME.get(canonical_name(name))
