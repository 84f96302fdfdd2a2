"""Tests that run the scripts in examples/ as their first lines say, with `make endpoint`."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.batches import line, to_jsonl
from support.processes.commands import run_command
from support.processes.s3_server import s3_server
from support.processes.servers import (
    ACCOUNT,
    KEY,
    READY,
    LocalEndpoint,
    ServerProcess,
    client_proxy,
    local_endpoint,
)
from support.runpod_api import document

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(
    str(file.relative_to(EXAMPLES))
    for file in EXAMPLES.rglob("*")
    if file.suffix in (".py", ".sh", ".mjs")
)
COUNT = re.escape(ANSWERS["Count to ten."])
# Examples that run on each change. The others are slow tests, because clients/ tests their routes
# and clients.
ALWAYS = (
    *("gateway/health.py", "gateway/openai_chat.py", "gateway/raw_job.sh", "llm_engine.py"),
    "openai_proxy.py",
)
# The complete output of each example, as a regular expression.
EXPECTED_OUTPUTS = {
    "anthropic_proxy.py": COUNT,
    "gateway/anthropic_messages.py": rf"{COUNT}\n14 tokens asked",
    "gateway/chat_stream.sh": (
        r'(?:data: \{.+\n\n)+data: \{.+"completion_tokens":28.+\n\ndata: \[DONE\]'
    ),
    "gateway/health.py": (
        r"(?:\d\d:\d\d:\d\d queue=0 running=0 failed=\d+ workers:(?: [a-z]+=\d)*? ready=1\n?){2}"
    ),
    "gateway/openai_chat.py": rf"{COUNT}\n28 tokens",
    "gateway/openai_embeddings.py": (r"0\.\d\d The invoice is due.+\n-?0\.\d\d .+\n-?0\.\d\d .+"),
    "gateway/openai_structured.py": r"name='demo' streams=True chunks=\[1, 3, 9, 27\]",
    "gateway/openai_tools.py": (
        r'job_status\(\{"job_id": "42"\}\)\nYes, job 42 is done: its status is COMPLETED\.'
    ),
    "gateway/raw_job.sh": rf'.*"status": "COMPLETED".*"tokens": \["{COUNT}"\].*"output": 28.*',
    "llm_engine.py": (
        r"models: demo, .+\nwhole: (.+)\nstreamed: \1\nfile: rows\.csv 2 lines\ndeleted: True"
    ),
    "many_prompts.py": (
        rf"(?:Number \d is.*\n){{3}}1000 answers, \d+ tokens\n{COUNT}\nThis worker .+"
    ),
    "openai_batch.py": rf"completed\ncounting: {COUNT}\ngreeting: Hello! Ask me .+",
    "openai_proxy.py": COUNT,
    "openai_transport.py": rf"{COUNT}\nkept on the volume\ndeleted: True",
}
ARGUMENTS = {"gateway/health.py": ["0", "2"], "gateway/openai_embeddings.py": ["minilm"]}
# Examples whose clients call our proxy.
PROXY_CLIENTS = ("anthropic_proxy.py", "openai_batch.py", "openai_proxy.py")
# Tested below with a volume's S3 API, with a worker that trains, or without a worker; the gateway
# is tested in clients/.
TESTED_SEPARATELY = {
    "customer_gateway.py",
    "deploy_plan.sh",
    "large_batch.py",
    "llm_engine_fine_tune.py",
    "openai_fine_tune.py",
}
# Tested in tests/clients, with adapters or with the clients that are installed there.
TESTED_IN_CLIENTS = {
    script for script in SCRIPTS if script.startswith(("coding-agents/", "frameworks/"))
} | {"gateway/openai_adapter.py"}
# Bytes; a job can contain 14 MB of a file.
LARGER_THAN_A_JOB = 15_000_000


def run_example(script: str, folder: Path, *words: str, **environ: str) -> str:
    """Run an example in another directory; return its output."""
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    interpreter = [sys.executable] if script.endswith(".py") else ["bash"]
    variables = {"PATH": commands, "PYTHONPATH": str(ROOT / "src"), **environ}
    result = run_command(variables, *interpreter, EXAMPLES / script, *words, folder=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


def endpoint_variables(endpoint: LocalEndpoint) -> dict[str, str]:
    """Return the variables with the endpoint's address and the account's key."""
    return {
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
        "OPENAI_BASE_URL": endpoint.openai_url,
        "OPENAI_API_KEY": ACCOUNT,
        "ANTHROPIC_BASE_URL": endpoint.openai_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": ACCOUNT,
    }


def proxy_variables(proxy: ServerProcess) -> dict[str, str]:
    """Return the variables of clients that call the proxy."""
    return {
        "OPENAI_BASE_URL": f"{proxy.url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_API_KEY": KEY,
    }


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(one, marks=[] if one in ALWAYS else pytest.mark.slow)
        for one in EXPECTED_OUTPUTS
    ],
)
def test_an_example_prints_the_expected_output(
    script: str, make_endpoint: LocalEndpoint, proxy: ServerProcess, tmp_path: Path
) -> None:
    environ = (
        proxy_variables(proxy) if script in PROXY_CLIENTS else endpoint_variables(make_endpoint)
    )
    found = run_example(script, tmp_path, *ARGUMENTS.get(script, []), **environ)
    assert re.fullmatch(EXPECTED_OUTPUTS[script], found.rstrip("\n")), found


@pytest.mark.slow
def test_a_batch_larger_than_a_job_is_answered(
    make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    body: dict[str, Any] = {
        **{"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0},
        # Only increases the size of the file.
        "user": "x" * (LARGER_THAN_A_JOB // 15),
    }
    (tmp_path / "requests.jsonl").write_bytes(to_jsonl(line(str(n), **body) for n in range(15)))
    with s3_server(make_endpoint.log.parent / "volume", tmp_path / "log") as s3:
        environ = {**endpoint_variables(make_endpoint), **s3.environ}
        found = run_example(
            "large_batch.py", tmp_path, "requests.jsonl", "answers.jsonl", **environ
        )
    assert re.fullmatch(r"completed .*completed=15, failed=0.*\n", found), found
    answers = [*map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())]
    assert {answer["custom_id"] for answer in answers} == {str(n) for n in range(15)}
    assert "eight, nine, ten" in json.dumps(answers[0])


def test_the_plan_of_an_endpoint_is_a_valid_request_to_the_platform(tmp_path: Path) -> None:
    # The command that pip installs runs this module.
    command = tmp_path / "llm-worker-client"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m llm_worker_client "$@"\n')
    command.chmod(0o755)
    plan = run_example("deploy_plan.sh", tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    schema = {"$ref": "#/components/schemas/CreateEndpointRequest"}
    assert document.schema_errors(schema, json.loads(plan)["body"]) == []


@pytest.mark.slow
def test_the_fine_tuning_examples_teach_the_colours(
    worker_environ: dict[str, str], tmp_path: Path
) -> None:
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={tmp_path}"]
    (tmp_path / "volume").mkdir()
    settings = {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path / "volume")}
    with local_endpoint(command, {**worker_environ, **settings}, tmp_path / "log") as endpoint:
        endpoint.wait_for_output(READY)
        found = run_example(
            "llm_engine_fine_tune.py", tmp_path, **endpoint_variables(endpoint)
        ).splitlines()
        with client_proxy(endpoint.api_url, tmp_path / "proxy", PROXY_API_KEY=KEY) as proxy:
            openai_output = run_example(
                "openai_fine_tune.py", tmp_path, **proxy_variables(proxy)
            ).splitlines()
    assert found[1].startswith("SUCCESS demo.colours.")
    assert found[-1].endswith(": A token is green.")
    assert openai_output[0].strip() == "succeeded"
    assert re.fullmatch(r"demo\.colours\..+: A token is green\.", openai_output[-1])


def test_every_example_is_listed_and_tested() -> None:
    assert set(SCRIPTS) == EXPECTED_OUTPUTS.keys() | TESTED_SEPARATELY | TESTED_IN_CLIENTS
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
    monitoring = [str(file.relative_to(EXAMPLES)) for file in (EXAMPLES / "monitoring").iterdir()]
    assert sorted(listed) == sorted([*SCRIPTS, *monitoring])
