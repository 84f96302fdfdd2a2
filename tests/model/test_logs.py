"""Records of vLLM's log as the reader of the worker's log takes them."""

import json
import logging

import pytest

from worker.logs.reader import Lines


@pytest.mark.usefixtures("engine")
def test_a_record_of_vllms_log_with_a_traceback_becomes_one_object() -> None:
    # If it doesn't, vLLM begins or ends a record's lines in another way: worker/logs/reader.py.
    handler, *_ = logging.getLogger("vllm").handlers  # pytest has added its own
    with pytest.raises(ValueError, match="one") as failed:
        int("one")
    error = (failed.type, failed.value, failed.tb)
    record = logging.getLogRecordFactory()(
        "vllm.v1", logging.ERROR, "core.py", 7, "failed: %s", ("a\n\nb",), error
    )
    (line,) = Lines().feed(f"{handler.format(record)}\n".encode())
    read = json.loads(line)
    first, *rest = read["message"].split("\n")
    assert read["level"] == "ERROR"
    assert first.endswith(" [core.py:7] failed: a")
    assert rest[:3] == ["", "b", "Traceback (most recent call last):"]
    assert rest[-1].startswith("ValueError: invalid literal")
