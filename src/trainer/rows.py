"""Reads files of rows, JSONL or CSV, and validates their rows: prompts or conversations."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from worker.compression import find_compression
from worker.fine_tunes.spec import FileField, RowMistake, RowsFile
from worker.messages import REASONING_KEYS, find_reasoning

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
MAX_ROWS = 100_000
MAX_ROW_BYTES = 1 << 20
ROW_TOO_LONG = f"the row has more than {MAX_ROW_BYTES:,} bytes"
# Maximum number of mistakes that are listed; others are only counted.
MAX_MISTAKES = 100
# Beginnings of the messages of Python's csv module, with the messages that replace them.
CSV_ERRORS = {
    "unexpected end": "a quotation mark is never closed",
    "new-line character": "a line ends with a carriage return alone; it has to be \\n or \\r\\n",
    "',' expected": "a quotation mark in a quoted field has to be doubled",
}

# Keys of a prompt and its answer: LLM Engine's two pairs, and OpenAI's former pair.
KEY_PAIRS = (("prompt", "response"), ("input", "output"), ("prompt", "completion"))
KEY_PAIRS_TEXT = "prompt and response, input and output, or prompt and completion"

ROLES = ("system", "developer", "user", "assistant", "tool")
# Known keys of a message. ``refusal`` and ``annotations``, which answers have, are ignored.
MESSAGE_KEYS = frozenset(
    "role content name weight tool_calls tool_call_id refusal annotations".split()
) | {*REASONING_KEYS}
# Maximum number of messages per row: each answer is rendered with all messages before it.
MAX_MESSAGES = 256
# Maximum number of characters of a key in an error message.
MAX_KEY_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation."""

    # For a chat template; each content is a string or a list of text parts.
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    learned_indices: tuple[int, ...]  # assistant's messages that are learned, ascending


RowValue = PromptRow | ChatRow


class InvalidRowError(Exception):
    """A row can't be trained on; the message gives the reason, without the row's text."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ParsedRow(NamedTuple):
    """A row, the number of its first line, and its size in characters."""

    line: int
    value: RowValue
    size: int


class _NoRow(NamedTuple):
    """A line without a row; ``message`` says why, and is None if the line is blank."""

    line: int
    message: str | None = None


class Mistakes:
    """The mistakes in a file of rows; ``count`` includes the mistakes that are not listed."""

    def __init__(self, file: FileField) -> None:
        self.file = file
        self.count = 0
        self._listed: list[RowMistake] = []

    def add(self, line: int | None, message: str) -> None:
        """Add a mistake; without a line, it concerns the whole file."""
        self.count += 1
        if len(self._listed) < MAX_MISTAKES:
            self._listed.append(RowMistake(file=self.file, line=line, message=message))

    @property
    def listed_mistakes(self) -> list[RowMistake]:
        """The first mistakes, up to ``MAX_MISTAKES``, sorted by line."""
        return sorted(self._listed, key=lambda mistake: mistake.line or 0)


def read_rows(data: RowsFile, mistakes: Mistakes) -> Iterator[ParsedRow]:
    """Yield the valid rows of a file, and collect its mistakes.

    Stops after ``MAX_ROWS`` rows, mistakes or blank lines.
    """
    if not data.path.is_file():
        mistakes.add(None, "there is no such file")
        return
    if compression := find_compression(data.path):
        mistakes.add(None, f"the file is compressed ({compression}), and has to be CSV or JSONL")
        return
    count = blank_count = 0
    with data.path.open("rb") as file:
        first_bytes = file.read(100)
        if first_bytes.startswith(UTF_16):
            mistakes.add(None, "the file is UTF-16, and has to be UTF-8")
            return
        file_format = data.form or _detect_format(data.path, first_bytes.removeprefix(BOM))
        file.seek(len(BOM) if first_bytes.startswith(BOM) else 0)
        for row in _read_csv_rows(file) if file_format == "csv" else _read_jsonl_rows(file):
            if isinstance(row, ParsedRow):
                count += 1
                if count > MAX_ROWS:
                    mistakes.add(row.line, f"the file has more than {MAX_ROWS:,} rows")
                    return
                yield row
            elif row.message is None:
                blank_count += 1
                if blank_count > MAX_ROWS:
                    mistakes.add(row.line, f"the file has more than {MAX_ROWS:,} blank lines")
                    return
            else:
                mistakes.add(row.line, row.message)
            if mistakes.count > MAX_ROWS:
                return
    if not count and not mistakes.count:
        mistakes.add(None, "the file has no rows")


def _detect_format(path: Path, text: bytes) -> Literal["csv", "jsonl"]:
    suffix = path.suffix.lower()
    if suffix in {".csv", ".jsonl", ".ndjson", ".json"}:
        return "csv" if suffix == ".csv" else "jsonl"
    return "jsonl" if text.lstrip()[:1] in b"{[" else "csv"


def _read_lines_with_flaws(file: BinaryIO) -> Iterator[tuple[int, str, str | None]]:
    """Yield each line's number and text, and a message about its flaw or None.

    Flaws are NUL characters, invalid UTF-8, and excessive length: the text is then the line's end.
    """
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 2):
        number += 1
        flaw = ROW_TOO_LONG if len(line.rstrip(b"\r\n")) > MAX_ROW_BYTES else None
        while not line.endswith(b"\n") and (rest := file.readline(MAX_ROW_BYTES)):
            line = rest
        text = line.decode(errors="replace")
        if flaw is None and "\0" in text:
            flaw = "the line has a NUL character in it"
        elif flaw is None and "\ufffd" in text and text.encode() != line:
            flaw = "the line is not UTF-8"
        yield number, text, flaw


# JSONL


def _read_jsonl_rows(file: BinaryIO) -> Iterator[ParsedRow | _NoRow]:
    """Yield the rows of a JSONL file, all of one type, and a mistake for each invalid line."""
    row_type: type[RowValue] | None = None
    for number, text, flaw in _read_lines_with_flaws(file):
        if flaw is not None:
            yield _NoRow(number, flaw)
        elif not text.strip():
            yield _NoRow(number)
        else:
            try:
                value = parse_row(_parse_json(text))
            except InvalidRowError as error:
                yield _NoRow(number, error.message)
                continue
            row_type = row_type or type(value)
            if isinstance(value, row_type):
                yield ParsedRow(number, value, len(text))
            else:
                message = (
                    "a file has either messages or prompts, and its first row differs from this one"
                )
                yield _NoRow(number, message)


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_unique_dict, parse_constant=_reject_nan)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRowError("a text contains half of a surrogate pair") from None
    except (ValueError, RecursionError):
        raise InvalidRowError("the line is not valid JSON") from None
    return value


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicate = next(key for key, count in counts.items() if count > 1)
        raise InvalidRowError(f"the key {_quote_key(duplicate)} occurs twice in an object")
    return values


def _reject_nan(name: str) -> None:
    raise InvalidRowError(f"{name} is not valid JSON")


# CSV


def _read_csv_rows(file: BinaryIO) -> Iterator[ParsedRow | _NoRow]:
    """Yield the rows of a CSV file, and its mistakes; without a valid header, there are no rows."""
    # A field may be as long as its row; the csv module's default limit is shorter.
    csv.field_size_limit(2 * MAX_ROW_BYTES)
    # The names of all columns in the header, and those of the prompt and the answer.
    names: list[str] = []
    pair: tuple[str, str] | None = None
    for line, fields, flaws in _read_csv_records(file):
        if flaws:
            yield from flaws
        elif not any(field.strip() for field in fields):
            yield _NoRow(line)
            continue
        elif pair is not None and len(fields) != len(names):
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            yield _NoRow(line, f"the row has {count}, and the header {len(names)}")
        else:
            try:
                if pair is None:
                    names = [name.strip().lower() for name in fields]
                    pair = _find_columns(names)
                    continue
                value = _parse_prompt_row(dict(zip(names, fields, strict=True)), pair)
            except InvalidRowError as error:
                yield _NoRow(line, error.message)
            else:
                yield ParsedRow(line, value, len(value.prompt) + len(value.answer))
        if pair is None:
            return


def _find_columns(names: list[str]) -> tuple[str, str]:
    if len(set(names)) < len(names):
        raise InvalidRowError("the header names a column twice")
    if (pair := _find_prompt_answer_keys(names)) is None:
        has_other_separator = len(names) == 1 and any(mark in names[0] for mark in ";\t|")
        hint = "; columns are separated by commas" if has_other_separator else ""
        raise InvalidRowError(f"the first line has to name the columns {KEY_PAIRS_TEXT}{hint}")
    return pair


class _CsvLines:
    """The lines of a file for Python's CSV reader, with the flaws in the current record.

    Iterating raises ``InvalidRowError`` if the record has too many bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._lines = _read_lines_with_flaws(file)
        self.begin_record()

    def begin_record(self) -> None:
        self.size = 0
        self.flaws: list[_NoRow] = []

    def __iter__(self) -> Iterator[str]:
        for number, text, flaw in self._lines:
            self.size += len(text if text.isascii() else text.encode())
            if flaw == ROW_TOO_LONG or self.size > MAX_ROW_BYTES:
                hint = "a quotation mark may be missing; what follows has not been read"
                raise InvalidRowError(f"{ROW_TOO_LONG}: {hint}")
            if flaw is not None:
                self.flaws.append(_NoRow(number, flaw))
            yield text


def _read_csv_records(file: BinaryIO) -> Iterator[tuple[int, list[str], list[_NoRow]]]:
    """Yield each record's first line number, fields and mistakes; stop if a record is too long."""
    csv_lines = _CsvLines(file)
    reader = csv.reader(csv_lines, strict=True)
    while True:
        line = reader.line_num + 1
        csv_lines.begin_record()
        try:
            yield line, next(reader), csv_lines.flaws
        except StopIteration:
            return
        except csv.Error as error:
            hints = (hint for begin, hint in CSV_ERRORS.items() if str(error).startswith(begin))
            mistake = _NoRow(line, next(hints, "the row is not valid CSV"))
            yield line, [], csv_lines.flaws or [mistake]
        except InvalidRowError as error:
            yield line, [], [_NoRow(line, error.message)]
            return


# The values of rows


def parse_row(value: Any) -> RowValue:
    """Return the row in a parsed line of JSON; null counts as absent, other keys are ignored.

    Raises:
        InvalidRowError: The line is not a valid row.
    """
    if not isinstance(value, dict):
        hint = "; a list of rows is written as one row a line" if isinstance(value, list) else ""
        raise InvalidRowError(
            f"the line is {_describe_type(value)}, and has to be a JSON object{hint}"
        )
    row = _drop_nulls(value)
    pair = _find_prompt_answer_keys(row)
    if "messages" in row:
        if pair is not None:
            raise InvalidRowError(f"the row has messages and {' and '.join(pair)}: use one of them")
        if row.get("functions"):
            raise InvalidRowError("a row has tools instead of functions")
        return _parse_chat_row(row)
    if pair is None:
        raise InvalidRowError(f"the row has neither messages nor {KEY_PAIRS_TEXT}")
    return _parse_prompt_row(row, pair)


def _find_prompt_answer_keys(names: Iterable[str]) -> tuple[str, str] | None:
    known = set(names)
    found = [pair for pair in KEY_PAIRS if known.issuperset(pair)]
    if len(found) > 1:
        raise InvalidRowError(f"the row has several answers: use either {KEY_PAIRS_TEXT}")
    return found[0] if found else None


def _parse_prompt_row(values: Mapping[str, Any], pair: tuple[str, str]) -> PromptRow:
    prompt, answer = (_require_text(name, values[name], non_empty=True) for name in pair)
    return PromptRow(prompt, answer)


def _parse_chat_row(row: dict[str, Any]) -> ChatRow:
    values = row["messages"]
    if not isinstance(values, list) or not values:
        raise InvalidRowError("messages has to be a list of messages")
    if len(values) > MAX_MESSAGES:
        raise InvalidRowError(
            f"the row has {len(values):,} messages, and at most {MAX_MESSAGES} are accepted"
        )
    messages: list[dict[str, Any]] = []
    learned: list[int] = []
    for index, message in enumerate(values):
        try:
            parsed, weight = _parse_message(message)
        except InvalidRowError as error:
            raise InvalidRowError(f"messages[{index}]: {error.message}") from None
        messages.append(parsed)
        # A first message isn't learned: the model never answers an empty conversation.
        if parsed["role"] == "assistant" and weight and index:
            learned.append(index)
    if messages[-1]["role"] != "assistant":
        raise InvalidRowError(
            "the last message is not the assistant's, so there is no answer to it"
        )
    if not learned:
        raise InvalidRowError(
            "nothing can be learned: each answer has weight 0 or is the first message"
        )
    tools = row.get("tools")
    if tools is None or tools == []:
        return ChatRow(messages, None, tuple(learned))
    if not isinstance(tools, list) or not all(map(_has_named_function, tools)):
        raise InvalidRowError('tools has to be a list of {"type": "function", "function": {…}}')
    return ChatRow(messages, tools, tuple(learned))


def _parse_message(value: Any) -> tuple[dict[str, Any], int]:
    """Return a message for chat templates, and its weight."""
    if not isinstance(value, dict):
        raise InvalidRowError(f"it is {_describe_type(value)}, and has to be a JSON object")
    # An empty list means the same as null: answers have it for tool calls and annotations.
    present = {key: item for key, item in _drop_nulls(value).items() if item != []}
    if unknown := sorted(set(present).difference(MESSAGE_KEYS)):
        allowed = ", ".join(sorted(MESSAGE_KEYS))
        raise InvalidRowError(f"the key {_quote_key(unknown[0])} is not known; known are {allowed}")
    role = present.get("role")
    if role not in ROLES:
        raise InvalidRowError(f"role has to be one of {', '.join(ROLES)}")
    message = {"role": role, "content": _parse_content(present.get("content", ""))}
    for key in ("name", "tool_call_id"):
        if key in present:
            message[key] = _require_text(key, present[key])
    if role == "assistant":
        message |= _parse_answer(present, message["content"])
    elif "content" not in present:
        raise InvalidRowError("content is missing")
    elif wrong := {"tool_calls", "weight"}.intersection(present):
        raise InvalidRowError(f"{min(wrong)} is for messages of the assistant")
    weight = present.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise InvalidRowError("weight has to be 0 or 1")
    return message, int(weight)


def _parse_content(value: Any) -> str | list[dict[str, str]]:
    if not isinstance(value, list):
        return _require_text("content", value)
    parts = [_drop_nulls(part) if isinstance(part, dict) else {} for part in value]
    for part in parts:
        if set(part) != {"type", "text"} or part["type"] != "text":
            raise InvalidRowError(
                'content has to be a text, or a list of {"type": "text", "text": …}'
            )
        _require_text("text", part["text"])
    return parts


def _parse_answer(message: dict[str, Any], content: str | list[dict[str, str]]) -> dict[str, Any]:
    """Return an assistant message's tool calls and reasoning, as chat templates expect them."""
    fields: dict[str, Any] = {}
    if "tool_calls" in message:
        fields["tool_calls"] = _parse_tool_calls(message["tool_calls"])
    else:
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        if not any(text.strip() for text in texts):
            raise InvalidRowError("the assistant's message has neither content nor tool_calls")
    if (reasoning := find_reasoning(message)) is not None:
        # vLLM passes the reasoning to templates under both names.
        text = _require_text(REASONING_KEYS[0], reasoning)
        fields |= dict.fromkeys(REASONING_KEYS, text)
    return fields


def _parse_tool_calls(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidRowError(f"tool_calls is {_describe_type(value)}, and has to be a list")
    calls = []
    for call in value:
        if not _has_named_function(call):
            raise InvalidRowError("each of tool_calls needs a function with a name")
        arguments = call["function"].get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict):
            raise InvalidRowError("a tool call's arguments have to be a JSON object")
        # Templates expect the arguments as an object, as vLLM passes them.
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return calls


def _has_named_function(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _require_text(name: str, value: Any, *, non_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidRowError(f"{name} is {_describe_type(value)}, and has to be a text")
    if non_empty and not value.strip():
        raise InvalidRowError(f"{name} is empty")
    return value


def _drop_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _quote_key(key: str) -> str:
    return repr(key if len(key) <= MAX_KEY_CHARACTERS else key[: MAX_KEY_CHARACTERS - 1] + "…")


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {str: "a text", bool: "a boolean", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")
