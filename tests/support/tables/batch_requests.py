"""Requests for batches that are refused: with which status, naming which field."""

from dataclasses import dataclass
from typing import Any

from support.batches import lines
from support.engine.scripted import CHAT

# Texts that name no object, whatever a file system would make of them.
NO_IDS = (
    "",
    ".",
    "..",
    "/",
    "../../secret",
    "..%2f..%2fsecret",
    "%2e%2e/%2e%2e/secret",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "{prefix}",
    "{prefix}../secret",
    "{prefix}" + "a" * 23,
    "{prefix}" + "a" * 25,
    "{prefix}" + "A" * 24,
    "{prefix}" + "a" * 23 + "/",
    "{prefix}" + "a" * 24 + "\n",
    "{prefix}" + "a" * 24 + "/../secret",
    "{prefix}" + "a" * 20_000,
)

# Paths that lead to no file of a caller's. The volume has a file ``in/a.jsonl``, a link ``out`` to
# the directory above it, ``leak`` to a file there, ``mine`` to the worker's directory, ``loop`` to
# itself, and a directory ``in``.
NO_PATHS = {
    "": "names a file",
    "a\0b": "names a file",
    "\ud800.jsonl": "leads to nothing",
    "s3://bucket": "names a file",
    ".": "out of the volume",
    "..": "out of the volume",
    "../secret": "out of the volume",
    "inbox/../../secret": "out of the volume",
    "/etc/passwd": "out of the volume",
    "/proc/self/environ": "out of the volume",
    "s3://bucket/../secret": "out of the volume",
    "out/secret": "out of the volume",
    "inbox/leak": "out of the volume",
    "worker/files/a/content": "callers' paths are below",
    "inbox/mine/batches": "callers' paths are below",
    "inbox/../worker": "callers' paths are below",
    "huggingface-cache/token": "callers' paths are below",
    "secret-of-operator/.env": "callers' paths are below",
    "inbox/.env": "begins with a dot",
    "s3://other/inbox/a.jsonl": "no other bucket",
    "s3://": "no other bucket",
    "https://example.com/a.jsonl": "callers' paths are below",
    "inbox/%2e%2e/secret": "no such file",
    "inbox/none.jsonl": "no such file",
    "inbox/A.jsonl": "no such file",
    "inbox": "callers' paths are below",
    "inbox/a.jsonl/b": "no such file",
    "loop": "leads to nothing",
    "a" * 300: "leads to nothing",
    "a/" * 5_000: "leads to nothing",
}


@dataclass(frozen=True)
class Refused:
    """A request that is refused.

    Args:
        changes: of the one that would be accepted; None leaves a key out.
        param: the field that is named, without what holds it.
        says: what the message has.
    """

    changes: dict[str, Any]
    param: str
    says: str = ""

    def of(self, accepted: dict[str, Any]) -> dict[str, Any]:
        changed = {**accepted, **self.changes}
        return {key: value for key, value in changed.items() if value is not None}


# Of both forms: a job that runs a batch, and the route that creates one.
REFUSED = {
    "an unknown endpoint": Refused({"endpoint": "/v1/audio"}, "endpoint", "one of /v1/chat"),
    "an endpoint of this worker's": Refused({"endpoint": "/v1/batches"}, "endpoint", "one of"),
    "an endpoint with a way up": Refused({"endpoint": f"{CHAT}/../x"}, "endpoint", "one of"),
    "an endpoint with a query": Refused({"endpoint": f"{CHAT}?a=1"}, "endpoint", "one of"),
    "an endpoint of another model's": Refused({"endpoint": "/v1/embeddings"}, "endpoint", "demo"),
    "another of those": Refused({"endpoint": "/score"}, "endpoint", "nothing that demo can do"),
    "an endpoint that is no text": Refused({"endpoint": 5}, "endpoint"),
    "no window": Refused({"completion_window": ""}, "completion_window", "24h, 7d"),
    "a window of minutes": Refused({"completion_window": "90m"}, "completion_window"),
    "a window of nothing": Refused({"completion_window": "0h"}, "completion_window"),
    "a negative window": Refused({"completion_window": "-1d"}, "completion_window"),
    "a window that is too long": Refused({"completion_window": "15d"}, "completion_window", "14"),
    "the same in hours": Refused({"completion_window": "337h"}, "completion_window", "14 days"),
    "a window in other digits": Refused({"completion_window": "٢h"}, "completion_window"),
    "a window with an end": Refused({"completion_window": "24h\n"}, "completion_window"),
    "a window as a number": Refused({"completion_window": 24}, "completion_window"),
    "too much metadata": Refused(
        {"metadata": {str(index): "a" for index in range(17)}}, "metadata", "16 pairs"
    ),
    "a long key of metadata": Refused({"metadata": {"a" * 65: "a"}}, "metadata", "64 and 512"),
    "a long value of metadata": Refused({"metadata": {"a": "a" * 513}}, "metadata", "64 and 512"),
    "metadata of numbers": Refused({"metadata": {"a": 1}}, "metadata.a", "string"),
    "metadata as a list": Refused({"metadata": ["a"]}, "metadata", "dictionary"),
    "half a character of metadata": Refused(
        {"metadata": {"a": "\ud800"}}, "metadata.a", "surrogate"
    ),
    "half a character of a key": Refused({"metadata": {"\udfff": "a"}}, ".[key]", "surrogate"),
    "files that expire at once": Refused(
        {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
        "output_expires_after.seconds",
        "3600",
    ),
    "files that expire late": Refused(
        {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
        "output_expires_after.seconds",
    ),
    "files that expire after something": Refused(
        {"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"
    ),
    "no job": Refused({"data_parallelism": 0}, "data_parallelism"),
    "too many jobs": Refused({"data_parallelism": 65}, "data_parallelism", "64"),
    "half a job": Refused({"data_parallelism": 1.5}, "data_parallelism"),
    "an unknown key": Refused({"endpont": CHAT}, "endpont"),
    "a file that is no text": Refused({"input_file_id": 5}, "input_file_id"),
}

# Of a job, which has several sources of lines.
REFUSED_JOBS = {
    "no source": Refused({"input_file_id": None}, "batch", "one of id, input_file_id"),
    "two sources": Refused({"input_path": "in/a.jsonl"}, "batch", "one of id, input_file_id"),
    "another two": Refused({"requests": lines(1)}, "batch", "one of id, input_file_id"),
    "a batch and a source": Refused({"id": "batch_a"}, "batch", "one of id, input_file_id"),
    "a batch and its endpoint": Refused(
        {"id": "batch_a", "input_file_id": None}, "batch", "with its id alone"
    ),
    "no endpoint": Refused({"endpoint": None}, "batch", "endpoint"),
    "an empty endpoint": Refused({"endpoint": ""}, "batch.endpoint", "one of"),
    "no requests": Refused({"input_file_id": None, "requests": []}, "batch.requests"),
    "requests that are none": Refused(
        {"input_file_id": None, "requests": [1]}, "batch.requests.0", "dictionary"
    ),
    "requests as a text": Refused({"input_file_id": None, "requests": "{}"}, "batch.requests"),
    "no time": Refused({"max_runtime_sec": 0}, "batch.max_runtime_sec", "greater than 0"),
    "endless time": Refused({"max_runtime_sec": float("inf")}, "batch.max_runtime_sec"),
    "time as a text": Refused({"max_runtime_sec": "60"}, "batch.max_runtime_sec"),
}
