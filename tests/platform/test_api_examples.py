"""The examples of docs/api.md that need a worker with all features: against `make endpoint`."""

import json
import urllib.request

import pytest
from support.processes.background import HUNG_S
from support.processes.local_endpoint import LocalEndpoint
from support.tables.api_examples import Example, examples


@pytest.mark.parametrize("example", examples(endpoint=True), ids=lambda example: example.name)
def test_a_job_is_answered_as_it_is_shown(example: Example, make_endpoint: LocalEndpoint) -> None:
    body = json.dumps({"input": example.payload}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{make_endpoint.url}/runsync", body, headers)
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        job = json.load(answer)
    assert job["status"] == "COMPLETED", job
    example.check(job["output"])
