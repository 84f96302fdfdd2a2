"""Clients, unchanged, through our proxy and our transport, in front of `make endpoint`."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from anthropic import Anthropic
from demo_model import ANSWERS
from support.batches import as_text, line
from support.processes.background import HUNG_S, wait_until
from support.processes.client_proxy import ACCOUNT, ClientProxy
from support.processes.http_worker import KEY
from support.processes.local_endpoint import LocalEndpoint

from llm_worker_client import RunpodTransport

COUNT = "Count to ten."
ASKED: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": COUNT}]}
CHAT: dict[str, Any] = {**ASKED, "temperature": 0}


@pytest.fixture(params=["proxy", "transport"])
def openai_client(
    request: pytest.FixtureRequest, make_endpoint: LocalEndpoint
) -> Iterator[openai.OpenAI]:
    if request.param == "proxy":
        url = request.getfixturevalue("proxy").url
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
            yield made
        return
    transport = RunpodTransport("local", ACCOUNT, make_endpoint.api_url)
    http = httpx2.Client(transport=transport, timeout=HUNG_S)
    with openai.OpenAI(api_key="any", http_client=http, max_retries=0) as made:
        yield made


def test_a_chat_is_the_same_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(**CHAT)
    assert whole.choices[0].message.content == ANSWERS[COUNT]
    events = openai_client.chat.completions.create(**CHAT, stream=True)
    deltas = [event.choices[0].delta.content or "" for event in events]
    assert ("".join(deltas), len(deltas) > 2) == (ANSWERS[COUNT], True)


def test_errors_have_their_statuses(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        openai_client.chat.completions.create(**{**CHAT, "model": "gpt-4"})
    with pytest.raises(openai.BadRequestError, match="temperature"):
        openai_client.chat.completions.create(**{**CHAT, "temperature": 5}, stream=True)
    with pytest.raises(openai.NotFoundError):
        openai_client.embeddings.create(model="demo", input="Hi")
    with pytest.raises(openai.NotFoundError):
        openai_client.files.content("file-x")


def test_a_file_goes_up_is_listed_read_and_deleted(openai_client: openai.OpenAI) -> None:
    content = b"\0\xff\n" * 700_000
    file = openai_client.files.create(
        file=("ä.bin", content),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.filename, file.bytes) == ("ä.bin", len(content))
    assert file.expires_at == file.created_at + 3600
    assert openai_client.files.content(file.id).read() == content
    assert file.id in [one.id for one in openai_client.files.list(purpose="user_data", limit=2)]
    assert openai_client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        openai_client.files.retrieve(file.id)


def test_a_batch_begins_by_itself_and_its_answers_are_read(openai_client: openai.OpenAI) -> None:
    lines = as_text(line(f"c{number}", **CHAT, max_tokens=3) for number in range(3))
    file = openai_client.files.create(file=("in.jsonl", lines), purpose="batch")
    batch = openai_client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    ended = ("completed", "failed", "expired", "cancelled")
    wait_until(lambda: openai_client.batches.retrieve(batch.id).status in ended)
    batch = openai_client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id
    answered = openai_client.files.content(batch.output_file_id).text
    assert [answered.count(f'"c{number}"') for number in range(3)] == [1, 1, 1]
    assert batch.id in [one.id for one in openai_client.batches.list(limit=5)]
    with pytest.raises(openai.ConflictError):
        openai_client.batches.cancel(batch.id)


# Other clients, through the proxy:


def test_anthropics_client_is_answered_whole_and_streamed(proxy: ClientProxy) -> None:
    message: dict[str, Any] = {**ASKED, "max_tokens": 100, "extra_body": {"temperature": 0}}
    with Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as anthropic_client:
        whole = anthropic_client.messages.create(**message)
        assert whole.content[0].to_dict()["text"] == ANSWERS[COUNT]
        with anthropic_client.messages.stream(**message) as stream:
            assert "".join(stream.text_stream) == ANSWERS[COUNT]
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            anthropic_client.messages.create(**{**message, "model": "claude"})


def test_the_platforms_own_api_takes_raw_jobs(proxy: ClientProxy) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"{proxy.url}/v2/local"
    with httpx.Client(base_url=url, headers=headers, timeout=HUNG_S) as http_client:
        given = {"prompt": "Hi", "sampling_params": {"max_tokens": 2, "ignore_eos": True}}
        ended = http_client.post("/runsync", json={"input": given}).json()
        assert ended["output"][0]["usage"]["output"] == 2
        assert http_client.get(f"/status/{ended['id']}").json()["status"] == "COMPLETED"
        assert httpx.post(f"{url}/runsync", json={"input": given}).status_code == 401
