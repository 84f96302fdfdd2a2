"""The scripts in examples/, run as their first lines say, in front of `make endpoint`."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.batches import as_text, line
from support.clients.proxy import ACCOUNT, ClientProxy, client_proxy
from support.processes.commands import run
from support.processes.http_worker import KEY
from support.processes.local_endpoint import READY, LocalEndpoint, local_endpoint
from support.processes.s3_server import s3_server
from support.runpod_api import document

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(
    str(file.relative_to(EXAMPLES))
    for file in EXAMPLES.rglob("*")
    if file.suffix in (".py", ".sh", ".mjs")
)
COUNT = re.escape(ANSWERS["Count to ten."])
# Run on each change; the others, whose routes and clients clients/ covers, are slow tests.
ALWAYS = ("gateway/openai_chat.py", "gateway/raw_job.sh", "llm_engine.py", "openai_proxy.py")
# What each prints, whole.
PRINTED = {
    "anthropic_proxy.py": COUNT,
    "gateway/anthropic_messages.py": rf"{COUNT}\n14 tokens asked",
    "gateway/chat_stream.sh": (
        r'(?:data: \{.+\n\n)+data: \{.+"completion_tokens":28.+\n\ndata: \[DONE\]'
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
WORDS = {"gateway/openai_embeddings.py": ["minilm"]}
# Their client is our proxy's.
PROXIED = ("anthropic_proxy.py", "openai_batch.py", "openai_proxy.py")
# Tested below: with a volume's S3 API, a worker that trains, or none.
APART = {"deploy_plan.sh", "large_batch.py", "llm_engine_fine_tune.py", "openai_fine_tune.py"}
# Tested in tests/clients, with adapters, or with clients that are installed there.
IN_CLIENTS = {
    script for script in SCRIPTS if script.startswith(("coding-agents/", "frameworks/"))
} | {"gateway/openai_adapter.py"}
# Bytes: a job takes 14 MB of a file.
LARGER_THAN_A_JOB = 15_000_000


def printed(script: str, folder: Path, *words: str, **environ: str) -> str:
    """Run an example in another folder; return what it printed."""
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    interpreter = [sys.executable] if script.endswith(".py") else ["bash"]
    variables = {"PATH": commands, "PYTHONPATH": str(ROOT / "src"), **environ}
    done = run(variables, *interpreter, EXAMPLES / script, *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(endpoint: LocalEndpoint) -> dict[str, str]:
    """Return the variables that say which endpoint is called, with whose key."""
    return {
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
        "OPENAI_BASE_URL": endpoint.openai_url,
        "OPENAI_API_KEY": ACCOUNT,
        "ANTHROPIC_BASE_URL": endpoint.openai_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": ACCOUNT,
    }


def behind(proxy: ClientProxy) -> dict[str, str]:
    """Return the variables of clients that call the proxy."""
    return {
        "OPENAI_BASE_URL": f"{proxy.url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_API_KEY": KEY,
    }


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, marks=[] if one in ALWAYS else pytest.mark.slow) for one in PRINTED],
)
def test_an_example_prints_what_it_should(
    script: str, make_endpoint: LocalEndpoint, proxy: ClientProxy, tmp_path: Path
) -> None:
    environ = behind(proxy) if script in PROXIED else of(make_endpoint)
    found = printed(script, tmp_path, *WORDS.get(script, []), **environ)
    assert re.fullmatch(PRINTED[script], found.rstrip("\n")), found


def test_a_batch_of_a_file_that_no_job_holds_is_answered(
    make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    body: dict[str, Any] = {
        **{"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0},
        # Counts for nothing but the file's size.
        "user": "x" * (LARGER_THAN_A_JOB // 15),
    }
    (tmp_path / "requests.jsonl").write_bytes(as_text(line(str(n), **body) for n in range(15)))
    with s3_server(make_endpoint.log.parent / "volume", tmp_path / "log") as s3:
        environ = {**of(make_endpoint), **s3.environ}
        found = printed("large_batch.py", tmp_path, "requests.jsonl", "answers.jsonl", **environ)
    assert re.fullmatch(r"completed .*completed=15, failed=0.*\n", found), found
    answers = [*map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())]
    assert {answer["custom_id"] for answer in answers} == {str(n) for n in range(15)}
    assert "eight, nine, ten" in json.dumps(answers[0])


def test_the_plan_of_an_endpoint_is_a_request_that_the_platform_takes(tmp_path: Path) -> None:
    # What pip installs as the command is this module.
    command = tmp_path / "llm-worker-client"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m llm_worker_client "$@"\n')
    command.chmod(0o755)
    plan = printed("deploy_plan.sh", tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    schema = {"$ref": "#/components/schemas/CreateEndpointRequest"}
    assert document.wrong_with(schema, json.loads(plan)["body"]) == []


@pytest.mark.slow
def test_a_fine_tune_teaches_the_colours(worker_environ: dict[str, str], tmp_path: Path) -> None:
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={tmp_path}"]
    (tmp_path / "volume").mkdir()
    settings = {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path / "volume")}
    with local_endpoint(command, {**worker_environ, **settings}, tmp_path / "log") as endpoint:
        endpoint.wait_for_output(READY)
        found = printed("llm_engine_fine_tune.py", tmp_path, **of(endpoint)).splitlines()
        with client_proxy(endpoint.api_url, tmp_path / "proxy", PROXY_API_KEY=KEY) as proxy:
            theirs = printed("openai_fine_tune.py", tmp_path, **behind(proxy)).splitlines()
    assert found[1].startswith("SUCCESS demo.colours.")
    assert found[-1].endswith(": A token is green.")
    assert theirs[0].strip() == "succeeded"
    assert re.fullmatch(r"demo\.colours\..+: A token is green\.", theirs[-1])


def test_every_example_is_listed_and_run_here() -> None:
    assert set(SCRIPTS) == PRINTED.keys() | APART | IN_CLIENTS
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == SCRIPTS
