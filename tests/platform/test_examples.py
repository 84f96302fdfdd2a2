"""The scripts in examples/, run as their first lines say, in front of `make endpoint`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.processes.client_proxy import ACCOUNT, ClientProxy, client_proxy
from support.processes.local_endpoint import READY, LocalEndpoint, local_endpoint
from support.processes.s3_server import s3_server
from support.runpod_api import document

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh"))
# Seconds, that end what hangs.
HUNG_S = 500
LONGEST = 40
KEY = "sk-of-callers"
COUNT = re.escape(ANSWERS["Count to ten."])
# What each prints, whole.
PRINTED = {
    "anthropic_proxy.py": COUNT,
    "llm_engine.py": (
        r"models: demo, .+\nwhole: (.+)\nstreamed: \1\nfile: rows\.csv 2 lines\ndeleted: True"
    ),
    "many_prompts.py": (
        rf"(?:Number \d is.*\n){{3}}1000 answers, \d+ tokens\n{COUNT}\nThis worker .+"
    ),
    "openai_proxy.py": COUNT,
    "openai_transport.py": rf"{COUNT}\nkept on the volume\ndeleted: True",
}
# Tested below: with a volume's S3 API, a worker that trains, or none.
APART = {"deploy_plan.sh", "large_batch.py", "llm_engine_fine_tune.py"}
# Bytes: a job takes 14 MB of a file.
LARGER_THAN_A_JOB = 15_000_000


def printed(script: str, folder: Path, *words: str, **environ: str) -> str:
    """Run an example in another folder; return what it printed."""
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    interpreter = [sys.executable] if script.endswith(".py") else ["bash"]
    done = subprocess.run(
        [*interpreter, EXAMPLES / script, *words],
        cwd=folder,
        env={"PATH": commands, "PYTHONPATH": str(ROOT / "src"), **environ},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(endpoint: LocalEndpoint) -> dict[str, str]:
    """Return the variables that say which endpoint is called, with whose key."""
    return {
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
    }


@pytest.fixture(scope="module")
def proxy(
    make_endpoint: LocalEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientProxy]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    with client_proxy(make_endpoint.api_url, log, PROXY_API_KEY=KEY) as running:
        yield running


@pytest.mark.parametrize("script", PRINTED)
def test_an_example_prints_what_it_should(
    script: str, make_endpoint: LocalEndpoint, proxy: ClientProxy, tmp_path: Path
) -> None:
    environ = {
        "OPENAI_BASE_URL": f"{proxy.url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": proxy.url,
        "ANTHROPIC_API_KEY": KEY,
    }
    found = printed(script, tmp_path, **(environ if "proxy" in script else of(make_endpoint)))
    assert re.fullmatch(PRINTED[script], found.rstrip("\n")), found


def test_a_batch_of_a_file_that_no_job_holds_is_answered(
    make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    lines = 15
    body = {
        "messages": [{"role": "user", "content": "Count to ten."}],
        "temperature": 0,
        # Counts for nothing but the file's size.
        "user": "x" * (LARGER_THAN_A_JOB // lines),
    }
    request = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    with (tmp_path / "requests.jsonl").open("w") as file:
        file.writelines(json.dumps({"custom_id": str(n), **request}) + "\n" for n in range(lines))
    with s3_server(make_endpoint.log.parent / "volume", tmp_path / "log") as s3:
        environ = {**of(make_endpoint), **s3.environ}
        found = printed("large_batch.py", tmp_path, "requests.jsonl", "answers.jsonl", **environ)
    assert re.fullmatch(rf"completed .*completed={lines}, failed=0.*\n", found), found
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {answer["custom_id"] for answer in answers} == {str(n) for n in range(lines)}
    assert "eight, nine, ten" in json.dumps(answers[0])


def test_the_plan_of_an_endpoint_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    # What pip installs as the command is this module.
    command = tmp_path / "llm-worker-client"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m llm_worker_client "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    first, second = (
        printed("deploy_plan.sh", tmp_path, PATH=path, PYTHONHASHSEED=seed) for seed in "12"
    )
    assert first == second
    schema = {"$ref": "#/components/schemas/CreateEndpointRequest"}
    assert document.wrong_with(schema, json.loads(first)["body"]) == []


@pytest.mark.slow
def test_a_fine_tune_teaches_the_colours(worker_environ: dict[str, str], tmp_path: Path) -> None:
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={tmp_path}"]
    (tmp_path / "volume").mkdir()
    settings = {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path / "volume")}
    with local_endpoint(command, {**worker_environ, **settings}, tmp_path / "log") as endpoint:
        endpoint.wait_for_output(READY)
        found = printed("llm_engine_fine_tune.py", tmp_path, **of(endpoint)).splitlines()
    assert found[1].startswith("SUCCESS demo.colours.")
    assert found[-1].endswith(": A token is green.")


def test_every_example_is_short_listed_and_run_here() -> None:
    assert set(SCRIPTS) == PRINTED.keys() | APART
    listed = re.findall(r"^\| \[(\S+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == SCRIPTS
    for script in SCRIPTS:
        assert len((EXAMPLES / script).read_text().splitlines()) <= LONGEST, script
