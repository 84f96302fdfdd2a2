"""Versions of OpenAI's client: in front of an endpoint, through the proxy and by the transport."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from demo_model import ANSWERS
from support.clients.openai import NEWEST, PROXY, TRANSPORT, Host, reached
from support.models.minilm import DIMENSIONS
from support.processes.local_endpoint import LocalEndpoint

BEGINS = "This worker turns a Hugging Face model"
COUNTED = ANSWERS["Count to ten."]


@pytest.fixture(scope="module", params=[PROXY, TRANSPORT])
def platform_host(
    request: pytest.FixtureRequest,
    make_endpoint: LocalEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Return the local platform in front of a worker."""
    with reached(request.param, make_endpoint, tmp_path_factory.mktemp("proxy") / "log") as found:
        yield found


@pytest.fixture(scope="module", params=["1", "2", NEWEST])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@functools.cache
def printed(host: Host, version: str, part: str) -> Any:
    """Return the answers that a version got, once."""
    return host.printed(version, part)


def test_a_chat_is_the_same_whole_and_streamed_with_asyncio_and_without(
    version: str, platform_host: Host
) -> None:
    answers = printed(platform_host, version, "chats")
    for found in (answers, answers["async"]):
        assert found["whole"] == COUNTED
        # vLLM joins the tokens that nobody has read yet: of all but the first, on a busy machine.
        assert ("".join(found["pieces"]), len(found["pieces"]) > 1) == (COUNTED, True)


def test_embeddings_models_and_errors_are_the_workers(version: str, platform_host: Host) -> None:
    found = printed(platform_host, version, "chats")
    assert found["embeddings"] == [DIMENSIONS] * 2
    assert {"demo", "tiny/demo", "minilm"} <= set(found["models"])
    assert (found["refusal"]["code"], "gpt-4" in found["refusal"]["message"]) == (404, True)


def test_a_client_uploads_runs_lists_reads_and_deletes(version: str, platform_host: Host) -> None:
    found = printed(platform_host, version, "batches")
    assert (found["batch"]["status"], found["batch"]["metadata"]) == ("completed", {"a": "b"})
    assert found["batch"]["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert list(found["answers"]) == [f"c{number}" for number in range(20)]
    assert all(text.startswith(BEGINS) for text in found["answers"].values())
    assert [found[name] for name in ("listed", "files", "deleted")] == [True] * 3
    assert (found["refusal"]["code"], found["refusal"]["param"]) == (404, "batch_id")
