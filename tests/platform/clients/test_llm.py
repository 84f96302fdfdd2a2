"""Tests of the client's `LLM` with `make endpoint`."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS, PASSAGE
from support import ROOT
from support.processes.background import start_command, wait_until
from support.processes.commands import run_command
from support.processes.servers import ACCOUNT, LocalEndpoint

from llm_worker_client import LLM, SamplingParams
from llm_worker_client.llm import EndpointError, PromptError, RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=400)
CONVERSATIONS = [[{"role": "user", "content": question}] for question in ANSWERS]


@pytest.fixture
def llm(make_endpoint: LocalEndpoint) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=make_endpoint.api_url) as client:
        yield client


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_outputs_match_the_response_to_a_raw_job(llm: LLM, make_endpoint: LocalEndpoint) -> None:
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "logprobs": 2}
    raw = {"prompt": PASSAGE[0], "sampling_params": params, "return_token_ids": True}
    (alone,) = make_endpoint.run(raw)
    (choice,) = alone["choices"]
    (output,) = llm.generate(PASSAGE[0], SamplingParams(**params), use_tqdm=False)
    (found,) = output.outputs
    assert (output.prompt, output.num_prompt_tokens) == (PASSAGE[0], alone["usage"]["input"])
    assert (found.text, found.token_ids) == (choice["tokens"][0], choice["token_ids"])
    assert (found.finish_reason, found.stop_reason) == ("length", None)
    assert found.logprobs is not None
    for position, entry in zip(found.logprobs, choice["logprobs"], strict=True):
        assert (position[entry["id"]].logprob, position[entry["id"]].rank) == (entry["logprob"], 1)
        assert [one.decoded_token for one in position.values()] == [
            one["token"] for one in entry["top"]
        ]


def test_hundreds_of_prompts_are_answered_in_order(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [f"Number {index}" for index in range(600)]
    counts = [index % 3 + 1 for index in range(600)]
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 2, 3)]
    outputs = llm.generate(prompts, [params[count - 1] for count in counts])
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == counts
    assert "600/600" in capsys.readouterr().err


def test_a_refused_prompt_is_named_and_the_outputs_of_the_others_are_available(llm: LLM) -> None:
    prompts = [PASSAGE[0], [1, 2], [10**6], PASSAGE[0]]
    with pytest.raises(PromptError, match="prompt 2: Token id 1000000") as refused:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert (refused.value.index, refused.value.status) == (2, 400)
    first, _, wrong, last = refused.value.outputs
    assert first
    assert last
    assert (texts([first, last]), wrong) == ([PASSAGE[1]] * 2, None)
    with pytest.raises(EndpointError, match="temperature") as endpoint_error:
        llm.generate(["a", "b"], SamplingParams(temperature=9), use_tqdm=False)
    assert endpoint_error.value.status == 400


def test_a_batch_of_conversations_has_the_outputs_of_a_list(llm: LLM) -> None:
    batch = llm.chat_batch(CONVERSATIONS, GREEDY)
    outputs = batch.wait_for_outputs(use_tqdm=False)
    listed = llm.chat(CONVERSATIONS, GREEDY, use_tqdm=False)
    assert texts(listed) == [*ANSWERS.values()]
    assert [output.outputs for output in outputs] == [output.outputs for output in listed]
    assert batch.status == "completed"


def environ(endpoint: LocalEndpoint) -> dict[str, str]:
    """Return the variables of a script that uses the endpoint."""
    return {
        "PYTHONPATH": str(ROOT / "src"),
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
    }


def test_the_pages_example_runs(make_endpoint: LocalEndpoint) -> None:
    page = (ROOT / "docs" / "client.md").read_text().split("## Lists of prompts")[1]
    example = page.split("```python\n")[1].split("```")[0].replace("<endpoint id>", "local")
    ran = run_command(environ(make_endpoint), sys.executable, "-c", example)
    assert ran.returncode == 0, ran.stderr
    first, hello, count, id, batched = ran.stdout.splitlines()
    assert first.startswith(f"{PASSAGE[0]} -> {batched}")
    assert hello.startswith("Hello -> ")
    assert count == ANSWERS["Count to ten."]
    assert id.startswith("batch_")


SCRIPT = """
from llm_worker_client import LLM, SamplingParams
params = SamplingParams(max_tokens=900, ignore_eos=True)
LLM().generate(["Once"] * 2000, params)
"""


def test_ctrl_c_cancels_the_jobs_of_the_script(
    make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    def jobs() -> int:
        found: dict[str, int] = make_endpoint.call("health")["jobs"]
        return found["inProgress"] + found["inQueue"]

    # The job of a batch may still run after the batch has ended.
    wait_until(lambda: jobs() == 0)
    command = [sys.executable, "-c", SCRIPT]
    with start_command(command, environ(make_endpoint), tmp_path / "log") as script:
        wait_until(jobs)
        script.process.send_signal(signal.SIGINT)
        script.wait_for_exit()
        assert "KeyboardInterrupt" in script.output
    wait_until(lambda: jobs() == 0)
