"""`LLM` in front of `make endpoint`: a script's prompts, answered by a real worker."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from demo_model import ANSWERS, PASSAGE
from support import ROOT
from support.processes.background import HUNG_S, background, wait_until
from support.processes.client_proxy import ACCOUNT
from support.processes.local_endpoint import LocalEndpoint

from llm_worker_client import LLM, SamplingParams
from llm_worker_client.llm import EndpointError, PromptError, RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=400)
CONVERSATIONS = [[{"role": "user", "content": question}] for question in ANSWERS]


@pytest.fixture
def llm(make_endpoint: LocalEndpoint) -> Iterator[LLM]:
    with LLM("local", api_key=ACCOUNT, base_url=make_endpoint.api_url) as made:
        yield made


def raw(endpoint: LocalEndpoint, **payload: Any) -> Any:
    """Return what the worker's own form answers."""
    job = httpx.post(f"{endpoint.url}/runsync", json={"input": payload}, timeout=HUNG_S).json()
    assert job["status"] == "COMPLETED", job
    return job["output"][0]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_answers_are_those_of_the_raw_form(llm: LLM, make_endpoint: LocalEndpoint) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "logprobs": 2}
    alone = raw(make_endpoint, prompt=PASSAGE[0], sampling_params=asked, return_token_ids=True)
    (choice,) = alone["choices"]
    (output,) = llm.generate(PASSAGE[0], SamplingParams(**asked), use_tqdm=False)
    (found,) = output.outputs
    assert (output.prompt, output.num_prompt_tokens) == (PASSAGE[0], alone["usage"]["input"])
    assert (found.text, found.token_ids) == (choice["tokens"][0], choice["token_ids"])
    assert (found.finish_reason, found.stop_reason) == ("length", None)
    assert found.logprobs is not None
    for position, entry in zip(found.logprobs, choice["logprobs"], strict=True):
        assert position[entry["id"]].logprob == entry["logprob"]
        assert position[entry["id"]].rank == 1
        assert [one.decoded_token for one in position.values()] == [
            one["token"] for one in entry["top"]
        ]


def test_conversations_are_answered_in_their_order(llm: LLM) -> None:
    assert texts(llm.chat(CONVERSATIONS, GREEDY, use_tqdm=False)) == [*ANSWERS.values()]
    assert texts(llm.chat(CONVERSATIONS[1], GREEDY)) == [[*ANSWERS.values()][1]]


def test_thousands_of_prompts_are_answered_in_their_order(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [index % 3 + 1 for index in range(3000)]
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 2, 3)]
    outputs = llm.generate(
        [f"Number {index}" for index in range(3000)], [params[count - 1] for count in counts]
    )
    assert [output.prompt for output in outputs] == [f"Number {index}" for index in range(3000)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == counts
    assert "3000/3000" in capsys.readouterr().err


def test_a_prompt_that_is_refused_is_named_and_the_others_are_kept(llm: LLM) -> None:
    prompts = [PASSAGE[0], [1, 2], [10**6], PASSAGE[0]]
    with pytest.raises(PromptError, match="prompt 2: Token id 1000000") as refused:
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert (refused.value.index, refused.value.status) == (2, 400)
    first, _, wrong, last = refused.value.outputs
    assert first
    assert last
    assert (texts([first, last]), wrong) == ([PASSAGE[1]] * 2, None)


def test_what_is_wrong_for_all_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(EndpointError, match="temperature") as refused:
        llm.generate(["a", "b"], SamplingParams(temperature=9), use_tqdm=False)
    assert refused.value.status == 400
    with pytest.raises(EndpointError, match="missing"):
        llm.generate("a", lora_request="missing", use_tqdm=False)


def test_texts_are_held_to_what_is_asked(llm: LLM) -> None:
    outputs = llm.generate(
        ["a", "b"], {"max_tokens": 9}, guided_options_request={"guided_choice": ["yes"]}
    )
    assert texts(outputs) == ["yes", "yes"]


def test_an_image_reaches_the_worker(llm: LLM) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(PromptError, match=r"prompt 0: .*image"):
        llm.chat([{"role": "user", "content": [image]}], GREEDY, use_tqdm=False)


def test_a_batch_is_answered_as_a_list_and_by_its_id(
    llm: LLM, make_endpoint: LocalEndpoint
) -> None:
    batch = llm.chat_batch(CONVERSATIONS, GREEDY)
    outputs = batch.outputs(use_tqdm=False)
    listed = llm.chat(CONVERSATIONS, GREEDY, use_tqdm=False)
    assert [output.outputs for output in outputs] == [output.outputs for output in listed]
    assert batch.status == "completed"
    asked = SamplingParams(temperature=0, max_tokens=3, logprobs=2)
    id = llm.generate_batch(["a", [1, 2]], asked).id
    with LLM("local", api_key=ACCOUNT, base_url=make_endpoint.api_url) as other:
        found = other.batch(id).outputs(use_tqdm=False)
    assert [output.prompt for output in found] == ["a", None]
    for one, same in zip(found, llm.generate(["a", [1, 2]], asked), strict=True):
        (batched,), (own,) = one.outputs, same.outputs
        assert (batched.text, batched.token_ids) == (own.text, own.token_ids)
        assert batched.cumulative_logprob == pytest.approx(own.cumulative_logprob, abs=1e-3)
        assert batched.logprobs
        assert own.logprobs
        assert [[*position] for position in batched.logprobs] == [
            [*position] for position in own.logprobs
        ]


def test_a_batch_searches_as_a_list_does(llm: LLM) -> None:
    asked = SamplingParams(use_beam_search=True, n=2, max_tokens=4, temperature=0)
    (found,) = llm.generate_batch(PASSAGE[0], asked).outputs(use_tqdm=False)
    (same,) = llm.generate(PASSAGE[0], asked, use_tqdm=False)
    assert [one.text for one in found.outputs] == [one.text for one in same.outputs]
    assert len({one.text for one in found.outputs}) == 2


def test_a_batch_tells_which_prompt_failed(llm: LLM) -> None:
    batch = llm.generate_batch(["a", [10**6]], SamplingParams(max_tokens=1))
    with pytest.raises(PromptError, match=r"prompt 1: .*1000000") as refused:
        batch.outputs(use_tqdm=False)
    assert [output is None for output in refused.value.outputs] == [False, True]


def environ(endpoint: LocalEndpoint) -> dict[str, str]:
    """Return the variables of a script that uses the endpoint."""
    return {
        "PYTHONPATH": str(ROOT / "src"),
        "RUNPOD_API_KEY": ACCOUNT,
        "RUNPOD_ENDPOINT_ID": "local",
        "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
    }


def test_the_page_s_example_runs(make_endpoint: LocalEndpoint) -> None:
    page = (ROOT / "docs" / "client.md").read_text().split("## Lists of prompts")[1]
    example = page.split("```python\n")[1].split("```")[0].replace("<endpoint id>", "local")
    ran = subprocess.run(
        [sys.executable, "-c", example],
        env=environ(make_endpoint),
        check=True,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
    )
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


def test_ctrl_c_frees_the_endpoint(make_endpoint: LocalEndpoint, tmp_path: Path) -> None:
    def jobs() -> dict[str, int]:
        health = httpx.get(f"{make_endpoint.url}/health", timeout=HUNG_S).json()
        found: dict[str, int] = health["jobs"]
        return found

    # The job of a batch may still run when the batch has ended.
    wait_until(lambda: jobs()["inProgress"] + jobs()["inQueue"] == 0)
    with background(
        [sys.executable, "-c", SCRIPT], environ(make_endpoint), tmp_path / "log"
    ) as script:
        wait_until(lambda: jobs()["inProgress"] > 0)
        script.process.send_signal(signal.SIGINT)
        script.ended()
        assert "KeyboardInterrupt" in script.output
    wait_until(lambda: jobs()["inProgress"] + jobs()["inQueue"] == 0)
