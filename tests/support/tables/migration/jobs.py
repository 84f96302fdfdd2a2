"""Forms of a job that ``worker-vllm`` documents, and what its README says that they may hold.

They are in jobs.json. ``answers`` names a function below, and what it is given; without it the
answer is a raw one. ``<prompt>``, ``<messages>`` and ``<talk>`` stand for what is defined here.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.migration import Verdict

Job = dict[str, Any]
Chunks = Sequence[Any]
# True if the yields of a job are as they are to be.
Answers = Callable[[Chunks], bool]

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


def raw(chunks: Chunks) -> bool:
    (whole,) = chunks
    one_text_each = all(len(choice["tokens"]) == 1 for choice in whole["choices"])
    return one_text_each and whole["usage"].keys() == {"input", "output"}


def raw_text(chunks: Chunks, words: str) -> bool:
    return raw(chunks) and words in chunks[0]["choices"][0]["tokens"][0]


def up_to_16(chunks: Chunks) -> bool:
    return raw(chunks) and chunks[0]["usage"]["output"] == 16


def of_sizes(chunks: Chunks, *sizes: int) -> bool:
    """Return whether a raw stream's chunks have these sizes, and count up what came."""
    counts = [chunk["usage"]["output"] for chunk in chunks]
    tokens = [len(chunk["choices"][0]["tokens"]) for chunk in chunks]
    return tokens == [*sizes] and counts == [sum(sizes[: k + 1]) for k in range(len(sizes))]


def one(chunks: Chunks, kind: str) -> bool:
    """Return whether there is one body, an object of OpenAI's or Anthropic's."""
    return len(chunks) == 1 and kind in {chunks[0].get("object"), chunks[0].get("type")}


def events(chunks: Chunks, last: str) -> bool:
    """Return whether all chunks are texts of whole events, and how the last one begins."""
    found = "".join(chunks).strip().split("\n\n")
    return all(chunk.endswith("\n\n") for chunk in chunks) and found[-1].startswith(last)


def thrice(chunks: Chunks) -> bool:
    """Return whether the text of a completion is a piece three times over."""
    text = chunks[0]["choices"][0]["text"]
    return bool(text) and text == text[: len(text) // 3] * 3


ANSWERS: dict[str, Callable[..., bool]] = {
    "raw": raw,
    "raw text": raw_text,
    "16 tokens": up_to_16,
    "chunks": of_sizes,
    "object": one,
    "events": events,
    "a piece thrice": thrice,
    "decoded events": lambda chunks: all(event["object"] for chunk in chunks for event in chunk),
    "an event a yield": lambda chunks: all(chunk.count("data: ") == 1 for chunk in chunks),
    "one yield": lambda chunks: len(chunks) == 1,
}


class Row(NamedTuple):
    """Jobs of one form.

    Attributes:
        form: as the page has it.
        answers: whether the yields of each job are right.
        differs: for the page; of what is refused it has the message of the first job.
        settings: of the worker, beside the defaults, with their values.
    """

    form: str
    verdict: Verdict
    jobs: Sequence[Job]
    answers: Answers
    differs: str
    settings: dict[str, str]


def _rows(rows: list[dict[str, Any]]) -> Iterator[Row]:
    for row in rows:
        name, *arguments = row.get("answers", ["raw"])

        def answers(chunks: Chunks, name: str = name, arguments: Any = arguments) -> bool:
            return ANSWERS[name](chunks, *arguments)

        verdict, differs = Verdict(row["verdict"]), row.get("differs", "")
        yield Row(row["form"], verdict, row["jobs"], answers, differs, row.get("settings", {}))


def _tables() -> dict[str, list[Row]]:
    text = Path(__file__).with_suffix(".json").read_text()
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(json.dumps(placeholder), json.dumps(value))
    return {head: [*_rows(rows)] for head, rows in json.loads(text).items()}


# By the head of the page's first column.
TABLES = _tables()


def refused(chunks: Chunks) -> str | None:
    """Return the message of a job that failed; None if it did not."""
    error = chunks[-1].get("error") if isinstance(chunks[-1], dict) else None
    message = json.loads(error)["error"]["message"] if error else None
    return message and str(message)
