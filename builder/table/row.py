"""A row of the table of settings, and the titles of the table's sections."""

from dataclasses import dataclass, replace

from worker.settings.examples import EXAMPLES

MODEL = "Choose a model"
MEMORY = "Fit it into memory"
SPEED = "Answer faster, and more requests"
ANSWERS = "Control the answers"
STREAMS = "Tune streams"
TOOLS = "Tools, reasoning and structured outputs"
MEDIA = "Images, videos and audio"
LORA = "LoRA adapters"
WORK = "Files, batches and fine-tuning"
SECURITY = "Security and limits"
LOGS = "Logs, metrics and receipts"
LIFE = "Start, recover and stop"
OTHER = "Set any other option"
LIBRARIES = "Variables of libraries"


@dataclass(frozen=True)
class Row:
    """One setting in the documentation and in the platform's forms.

    ``form``: whether the forms of the platform have it. ``advanced``: whether it is further down
    there.
    """

    name: str
    title: str
    meaning: str
    form: bool = False
    advanced: bool = False
    section: str = ""

    @property
    def example(self) -> str:
        """An accepted value; blank if an example for its type is enough."""
        return EXAMPLES.get(self.name, "")


def rows(section: str, *rows: Row) -> tuple[Row, ...]:
    """Return the rows of a section, in the order of the page."""
    return tuple(replace(row, section=section) for row in rows)
