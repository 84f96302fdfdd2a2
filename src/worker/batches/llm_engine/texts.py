"""A JSON text that may be larger than the memory, read value by value."""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from worker.errors import InvalidInput

# Characters that are read at once.
PART = 1 << 20

# Characters that a part of a value may have: "-Infinity", an escape.
LONGEST_WORD = 16

_SPACE = re.compile(r"[ \t\r\n]*")
# What follows a value that is complete: of a number there might be more.
_COMPLETE = re.compile(r"[ \t\r\n]*[,:\]}]")


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput(f"{name} is no number that JSON has")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


class Text:
    """Reads the parts of an array or an object one after the other.

    Args:
        opened: the text, from its beginning.
        longest: the most characters that one value may have.
    """

    def __init__(self, opened: TextIO, longest: int) -> None:
        self._opened = opened
        self._longest = longest
        self._held = ""
        # Where it goes on in what is held, and how many characters were before that.
        self._at = 0
        self._before = 0
        self._ended = False

    def items(self) -> Iterator[Any]:
        """Yield the items of an array.

        Raises:
            InvalidInput: here is no array, or what follows is no JSON.
        """
        self._take("[", "an array")
        if self.next() == "]":
            self._take("]", "")
            return
        while True:
            yield self.value()
            if self._take(",]", "a comma or the end of the array") == "]":
                return

    def members(self) -> Iterator[str]:
        """Yield the keys of an object; who iterates reads the value behind each.

        Raises:
            InvalidInput: here is no object, or what follows is no JSON.
        """
        self._take("{", "an object")
        if self.next() == "}":
            self._take("}", "")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._expected("a text as the key", self._at)
            self._take(":", "a colon")
            yield key
            if self._take(",}", "a comma or the end of the object") == "}":
                return

    def value(self) -> Any:
        """Return the value that begins here.

        Raises:
            InvalidInput: it is no JSON, or too long.
        """
        while True:
            self.next()
            try:
                value, end = _decode(self._held, self._at)
            except json.JSONDecodeError as broken:
                if self._may_be_cut(broken) and self._read():
                    continue
                raise self._expected("a value", broken.pos) from None
            except RecursionError:
                raise InvalidInput("it is nested too deeply") from None
            except ValueError:
                raise InvalidInput("a number in it has too many digits") from None
            if self._ended or _COMPLETE.match(self._held, end):
                self._at = end
                return value
            self._read()

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            InvalidInput: something does.
        """
        if self.next():
            raise self._expected("nothing more", self._at)

    def next(self) -> str:
        """Return the character that the next value begins with; none at the text's end."""
        while True:
            match = _SPACE.match(self._held, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._read():
                return ""

    def _may_be_cut(self, broken: json.JSONDecodeError) -> bool:
        """Return whether a value may be broken only because it is not whole yet."""
        # Of a text it tells where that begins.
        return "Unterminated" in broken.msg or broken.pos > len(self._held) - LONGEST_WORD

    def _take(self, expected: str, named: str) -> str:
        found = self.next()
        if not found or found not in expected:
            raise self._expected(named, self._at)
        self._at += 1
        return found

    def _read(self) -> bool:
        """Read on, and forget what was returned; return whether there was more."""
        if self._ended:
            return False
        held = self._held[self._at :]
        if len(held) > self._longest:
            raise InvalidInput(f"a value in it has more than {self._longest:,} characters")
        try:
            # Twice as much each time, since a value is parsed from its beginning again.
            read = self._opened.read(max(PART, len(held)))
        except UnicodeDecodeError:
            raise InvalidInput("it is not UTF-8") from None
        self._ended = not read
        self._before += self._at
        self._held, self._at = held + read, 0
        return bool(read)

    def _expected(self, what: str, at: int) -> InvalidInput:
        return InvalidInput(f"it is broken JSON: {what} expected at {self._before + at:,}")
