"""What is wrong in files of rows, collected so that all of it is told at once."""

from typing import Literal

from trainer.spec import Checked, Mistake

# Listed; the rest is counted.
MOST = 100

File = Literal["training_file", "validation_file"]


class BadData(Exception):
    """The files can't be trained on; ``checked`` has what is wrong with them."""

    def __init__(self, checked: Checked) -> None:
        super().__init__("there are mistakes in the files of rows")
        self.checked = checked


class WrongRowError(Exception):
    """A row can't be trained on; the message says why, without the row's text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Mistakes:
    """The mistakes in a file."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.count = 0
        self._found: list[Mistake] = []

    def add(self, line: int | None, message: str) -> None:
        """Note a mistake; ``line`` is None if it is the whole file's."""
        self.count += 1
        if len(self._found) < MOST:
            self._found.append(Mistake(file=self.file, line=line, message=message))

    @property
    def first(self) -> list[Mistake]:
        """The mistakes that are listed, in the order of their lines."""
        return sorted(self._found, key=lambda mistake: mistake.line or 0)
