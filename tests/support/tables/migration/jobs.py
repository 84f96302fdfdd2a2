"""Forms of jobs in the documentation of ``worker-vllm``, with the keys that its README lists.

They are in jobs.json. ``answers`` has the name of a check in ``CHECKS``, and its arguments; the
default is a raw response. ``PLACEHOLDERS`` has the values of ``<prompt>``, ``<messages>`` and
``<talk>``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.migration import Verdict

Job = dict[str, Any]
Chunks = Sequence[Any]
# Returns whether the yields of a job are correct.
Check = Callable[[Chunks], bool]

MESSAGES = [{"role": "user", "content": "Count to ten."}]
PLACEHOLDERS = {
    "<prompt>": "Once upon a time there was a small worker",
    "<messages>": MESSAGES,
    "<talk>": [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello."},
        *MESSAGES,
    ],
}


def is_raw(chunks: Chunks) -> bool:
    (whole,) = chunks
    one_text_each = all(len(choice["tokens"]) == 1 for choice in whole["choices"])
    return one_text_each and whole["usage"].keys() == {"input", "output"}


def is_raw_text(chunks: Chunks, words: str) -> bool:
    return is_raw(chunks) and words in chunks[0]["choices"][0]["tokens"][0]


def has_16_tokens(chunks: Chunks) -> bool:
    return is_raw(chunks) and chunks[0]["usage"]["output"] == 16


def has_chunk_sizes(chunks: Chunks, *sizes: int) -> bool:
    """Return whether the chunks of a raw stream have these sizes, and correct running totals."""
    counts = [chunk["usage"]["output"] for chunk in chunks]
    tokens = [len(chunk["choices"][0]["tokens"]) for chunk in chunks]
    return tokens == [*sizes] and counts == [sum(sizes[: k + 1]) for k in range(len(sizes))]


def is_object(chunks: Chunks, kind: str) -> bool:
    """Return whether there is one body, an object of this OpenAI or Anthropic type."""
    return len(chunks) == 1 and kind in {chunks[0].get("object"), chunks[0].get("type")}


def is_event_stream(chunks: Chunks, last: str) -> bool:
    """Return whether all chunks consist of whole events, and the last event has this prefix."""
    parts = "".join(chunks).strip().split("\n\n")
    return all(chunk.endswith("\n\n") for chunk in chunks) and parts[-1].startswith(last)


def repeats_three_times(chunks: Chunks) -> bool:
    """Return whether the text of a completion is a string repeated three times."""
    text = chunks[0]["choices"][0]["text"]
    return bool(text) and text == text[: len(text) // 3] * 3


CHECKS: dict[str, Callable[..., bool]] = {
    "raw": is_raw,
    "raw text": is_raw_text,
    "16 tokens": has_16_tokens,
    "chunks": has_chunk_sizes,
    "object": is_object,
    "events": is_event_stream,
    "a piece thrice": repeats_three_times,
    "decoded events": lambda chunks: all(event["object"] for chunk in chunks for event in chunk),
    "an event a yield": lambda chunks: all(chunk.count("data: ") == 1 for chunk in chunks),
    "one yield": lambda chunks: len(chunks) == 1,
}


class JobForm(NamedTuple):
    """Jobs of one form.

    Attributes:
        form: The form as on the page.
        answers: Function that checks the yields of each job.
        differs: The difference, for the page. For refused jobs, the page has the first job's
            message.
        settings: Settings of the worker in addition to the defaults.
    """

    form: str
    verdict: Verdict
    jobs: Sequence[Job]
    answers: Check
    differs: str
    settings: dict[str, str]


def _rows(rows: list[dict[str, Any]]) -> Iterator[JobForm]:
    for row in rows:
        name, *arguments = row.get("answers", ["raw"])

        def answers(chunks: Chunks, name: str = name, arguments: Any = arguments) -> bool:
            return CHECKS[name](chunks, *arguments)

        verdict, differs = Verdict(row["verdict"]), row.get("differs", "")
        yield JobForm(row["form"], verdict, row["jobs"], answers, differs, row.get("settings", {}))


def _tables() -> dict[str, list[JobForm]]:
    text = Path(__file__).with_suffix(".json").read_text()
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(json.dumps(placeholder), json.dumps(value))
    return {head: [*_rows(rows)] for head, rows in json.loads(text).items()}


# By the heading of the page's first column.
TABLES = _tables()


def error_message(chunks: Chunks) -> str | None:
    """Return the message of a failed job; None if the job did not fail."""
    error = chunks[-1].get("error") if isinstance(chunks[-1], dict) else None
    message = json.loads(error)["error"]["message"] if error else None
    return message and str(message)
