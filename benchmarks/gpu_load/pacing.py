"""The time and the tokens of a simulated GPU, without vLLM."""

import json
import os
import random
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

# Variable with the file of the core's records.
RECORDS_VARIABLE = "GPU_LOAD_RECORDS"
# Speed of the GPU for prompts. A step takes as long as its prompts, and at least 1/pace.
PREFILL_TOKENS_PER_S = 100_000
# Seconds that a record of a busy core covers; an idle core writes its record immediately.
RECORD_S = 0.25
TOOL_CALL = ('<tool_call>\n{"name": "look_up", "arguments": {"text": "', '"}}\n</tool_call>')


class Encoder(Protocol):
    """The part of a tokenizer of the library `tokenizers` that scripts need."""

    def get_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...


@dataclass(frozen=True)
class Record:
    """Consecutive steps of a core.

    Args:
        pid: Process of the core.
        began: Begin in seconds of the monotonic clock.
        ended: End in seconds of the monotonic clock.
        steps: Number of steps.
        tokens: Number of tokens of answers.
    """

    pid: int
    began: float
    ended: float
    steps: int
    tokens: int

    def share_in(self, began: float, ended: float) -> float:
        """Return the share of the steps that were in a window."""
        seconds = min(self.ended, ended) - max(self.began, began)
        return max(0.0, seconds) / (self.ended - self.began)


def read_records(file: Path) -> list[Record]:
    """Read the records of a core that has worked; the last line may be incomplete."""
    *lines, _ = file.read_text().split("\n")
    return [Record(**json.loads(line)) for line in lines]


def core_figures(records: Sequence[Record], began: float, ended: float) -> dict[str, float]:
    """Return the figures of a core in a window.

    They are the tokens per second, the steps per second with requests, and the milliseconds per
    second without any.
    """
    shares = [(record, record.share_in(began, ended)) for record in records]
    busy_s = sum(share * (record.ended - record.began) for record, share in shares)
    return {
        "core_tokens_per_s": sum(share * record.tokens for record, share in shares)
        / (ended - began),
        "steps_per_s": sum(share * record.steps for record, share in shares) / busy_s,
        "core_idle_ms": 1000 * (1 - busy_s / (ended - began)),
    }


class Clock:
    """The clock of a GPU with asynchronous scheduling, and the record of its work.

    The scheduler prepares a step while the previous one runs. It therefore delays a step only if
    it takes longer than the previous step. The GPU never makes up for lost time.

    Args:
        file: File to which records are appended as lines of JSON.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._due = self._step_s = self._began = 0.0
        self._steps = self._tokens = 0
        self._is_idle = True

    def run_step(self, pace: float, prompt_tokens: int, new_tokens: int, *, is_last: bool) -> None:
        """Sleep until the step ends; `is_last` is whether the GPU has nothing to do after it."""
        now = time.monotonic()
        if self._is_idle:
            self._due = self._began = now
            self._step_s = 0.0
        start = max(self._due, now - self._step_s)
        self._step_s = max(1 / pace, prompt_tokens / PREFILL_TOKENS_PER_S)
        self._due = start + self._step_s
        self._steps += 1
        self._tokens += new_tokens
        self._is_idle = is_last
        time.sleep(max(0.0, self._due - time.monotonic()))
        if is_last or self._due - self._began > RECORD_S:
            self._write_record()

    def _write_record(self) -> None:
        record = Record(os.getpid(), self._began, self._due, self._steps, self._tokens)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        self._began, self._steps, self._tokens = self._due, 0, 0


class Scripts:
    """The tokens of answers: words with a space in front, from the vocabulary of a tokenizer.

    Each word is one token, so that readers of an answer can count its tokens by its spaces.
    """

    def __init__(self, tokenizer: Encoder) -> None:
        vocabulary = tokenizer.get_vocab()
        self._words = [vocabulary[word] for word in words(vocabulary)]
        random.Random(7).shuffle(self._words)
        self._tool_call = [
            tokenizer.encode(text, add_special_tokens=False).ids for text in TOOL_CALL
        ]

    def write(self, number: int, tokens: int, *, calls_tool: bool) -> list[int]:
        """Return the tokens of an answer, which begins at another word for another number."""
        before, after = self._tool_call if calls_tool else ([], [])
        first = number % len(self._words)
        length = max(0, tokens - len(before) - len(after))
        text = islice(cycle(self._words), first, first + length)
        return [*before, *text, *after][:tokens]


def words(vocabulary: Mapping[str, int]) -> list[str]:
    """Return the tokens of a vocabulary of bytes that are a space, written as "Ġ", and letters."""
    letters = {*string.ascii_letters}
    return [
        token
        for token in sorted(vocabulary)
        if len(token) > 2 and token[0] == "Ġ" and letters.issuperset(token[1:])
    ]
