"""Versions of OpenAI's client: in front of an endpoint, and their batches over HTTP, too."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS
from support.models.minilm import DIMENSIONS
from support.processes.http_worker import KEY, http_worker
from support.processes.local_endpoint import LocalEndpoint
from support.processes.openai_clients import NEWEST, PROXY, SERVE, TRANSPORT, Host, reached

BEGINS = "This worker turns a Hugging Face model"
COUNTED = ANSWERS["Count to ten."]
TAUGHT = "The blue code."


@pytest.fixture(scope="module", params=[PROXY, TRANSPORT])
def platform_host(
    request: pytest.FixtureRequest,
    make_endpoint: LocalEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Return the local platform in front of a worker."""
    with reached(request.param, make_endpoint, tmp_path_factory.mktemp("proxy") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def http_host(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """Return a worker."""
    folder: Path = tmp_path_factory.mktemp("batches")
    environ = {"SERVE_API_KEY": KEY, "FILES_PATH": str(folder / "volume")}
    with http_worker({**worker_environ, **environ}, folder / "log") as running:
        yield Host(SERVE, running.url)


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


def check_batches(found: Any) -> None:
    assert (found["batch"]["status"], found["batch"]["metadata"]) == ("completed", {"a": "b"})
    assert found["batch"]["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert list(found["answers"]) == [f"c{number}" for number in range(20)]
    assert all(text.startswith(BEGINS) for text in found["answers"].values())
    assert [found[name] for name in ("listed", "files", "deleted")] == [True] * 3
    assert (found["refusal"]["code"], found["refusal"]["param"]) == (404, "batch_id")


def test_a_client_uploads_runs_lists_reads_and_deletes(version: str, platform_host: Host) -> None:
    check_batches(printed(platform_host, version, "batches"))


def test_so_it_does_over_http(version: str, http_host: Host) -> None:
    check_batches(printed(http_host, version, "batches"))


def test_a_fine_tune_is_followed_to_an_adapter_that_answers(
    version: str, platform_host: Host
) -> None:
    found = printed(platform_host, version, "fine-tunes")
    assert (found["status"], found["error"]) == ("succeeded", None)
    assert set(found["events"]) == {"message", "metrics"}
    assert len(found["events"]) > 5
    assert len(found["checkpoints"]) == 3
    assert set(found["checkpoints"]) <= set(found["models"])
    assert found["taught"] == TAUGHT != found["base"]
    assert (found["cancel"], found["listed"]) == ("cancelled", True)
