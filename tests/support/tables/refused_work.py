"""Refused inputs of jobs with batches and fine-tunes, their messages and parameters."""

import math
from collections.abc import Iterator
from typing import Any

from support.tables.refused_jobs import AT_LEAST, AT_MOST, CHAT, EMPTY, OBJECT, TEXT

Spec = dict[str, Any]

ON_VOLUME: Spec = {"input_path": "inbox/a.jsonl", "endpoint": CHAT}
OF_FILE: Spec = {"training_file": "a"}
ABOVE_0 = "Input should be greater than 0"
WINDOW = "hours or days, at most 14 days: 24h, 7d"
WINDOWS = ["", "90m", "0h", "-1d", "15d", "337h", "٢h", "24h\n"]
HALF = "contains half of a surrogate pair, which is not a character"
SIZES = "keys and values have at most 64 and 512 characters"
SUPERVISED_ONLY = '"supervised": this worker trains by no other method'
EXPIRY, ANCHORED = "output_expires_after", {"anchor": "created_at"}
LONGER_THAN = "String should have at most {} characters".format
WANDB, TOO_MANY_TAGS = "integrations", "List should have at most 64 items after validation, not 65"


def with_wandb(**options: Any) -> dict[str, Any]:
    return {"type": "wandb", "wandb": {"project": "a", **options}}


# Wrong values: other keys, the key, the field below it, the message, the values.
VALUES: dict[str, list[tuple[Spec, str, str, str, list[Any]]]] = {
    "batch": [
        (ON_VOLUME, "completion_window", "", WINDOW, WINDOWS),
        (ON_VOLUME, "metadata", "", "at most 16 pairs", [{f"{n}": "a" for n in range(17)}]),
        (ON_VOLUME, "metadata", "", SIZES, [{"a" * 65: "a"}, {"a": "a" * 513}]),
        (ON_VOLUME, "metadata", ".a", TEXT, [{"a": 1}]),
        (ON_VOLUME, "metadata", ".a", HALF, [{"a": "\ud800"}]),
        (ON_VOLUME, "metadata", ".\ufffd\ufffd\ufffd.[key]", HALF, [{"\udfff": "a"}]),
        (ON_VOLUME, EXPIRY, ".seconds", AT_LEAST(3600), [{**ANCHORED, "seconds": 3599}]),
        (ON_VOLUME, EXPIRY, ".seconds", AT_MOST(2_592_000), [{**ANCHORED, "seconds": 2_592_001}]),
        (ON_VOLUME, EXPIRY, ".anchor", "Field required", [{"seconds": 3600}]),
        (ON_VOLUME, "data_parallelism", "", AT_LEAST(1), [0]),
        (ON_VOLUME, "data_parallelism", "", AT_MOST(64), [65]),
        (ON_VOLUME, "max_runtime_sec", "", ABOVE_0, [0]),
        (ON_VOLUME, "max_runtime_sec", "", "Input should be a finite number", [math.inf]),
        (ON_VOLUME, "requests", "", EMPTY, [[]]),
        (ON_VOLUME, "requests", ".0", OBJECT, [[1]]),
    ],
    "fine_tune": [
        ({}, "rows", "", EMPTY, [[]]),
        ({}, "training_file", "", "String should have at least 1 character", [""]),
        ({}, "training_file", "", LONGER_THAN(8192), ["https://a/" + "a" * 8183]),
        (OF_FILE, WANDB, ".0.wandb.name", LONGER_THAN(256), [[with_wandb(name="a" * 257)]]),
        (OF_FILE, WANDB, ".0.wandb.tags.0", LONGER_THAN(256), [[with_wandb(tags=["a" * 257])]]),
        (OF_FILE, WANDB, ".0.wandb.tags", TOO_MANY_TAGS, [[with_wandb(tags=["a"] * 65)]]),
        (OF_FILE, "max_runtime_sec", "", ABOVE_0, [0]),
        (OF_FILE, "suffix", "", "Input should be letters, digits and dashes", ["../x"]),
        (OF_FILE, "method", ".type", SUPERVISED_ONLY, [{"type": "dpo"}]),
    ],
}
# Keys that exclude each other, and missing keys: the kind of work, the message, the specs.
ONE_OF = "one of id, {}".format
ALONE = "an existing {} is continued with its id alone".format
BATCHES = ONE_OF("input_file_id, requests and input_path")
FINE_TUNES = ONE_OF("training_file, training_path and rows")
TOGETHER: list[tuple[str, str, list[Spec]]] = [
    ("batch", BATCHES, [{**ON_VOLUME, key: "a"} for key in ("input_file_id", "id")]),
    ("batch", BATCHES, [{"endpoint": CHAT}, {**ON_VOLUME, "requests": [{}]}]),
    ("batch", ALONE("batch"), [{"id": "batch_a", "endpoint": CHAT}]),
    ("batch", "endpoint: the URL of the lines", [{"input_path": "a"}]),
    ("fine_tune", FINE_TUNES, [{}, {"id": "a", **OF_FILE}, {"rows": [{}], "training_path": "a"}]),
    ("fine_tune", ALONE("fine-tune"), [{"id": "a", "suffix": "other"}]),
]
# Unknown keys, with the intended key.
UNKNOWN = [("batch", "endpont", "endpoint"), ("fine_tune", "trainingfile", "training_file")]


def refused_cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the parameter, the message and the input of each case."""
    for work, rows in VALUES.items():
        for base, key, below, message, values in rows:
            name = f"{work}.{key}{below}"
            yield from ((name, f"{name}: {message}", {work: {**base, key: it}}) for it in values)
    for work, message, specs in TOGETHER:
        yield from ((work, f"{work}: {message}", {work: spec}) for spec in specs)
    for work, key, meant in UNKNOWN:
        message = f"unknown key '{work}.{key}': did you mean '{work}.{meant}'?"
        yield f"{work}.{key}", message, {work: {key: "a"}}
