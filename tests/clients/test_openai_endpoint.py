"""Versions of OpenAI's client in front of an endpoint: through the proxy, by the transport."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from demo_model import ANSWERS
from support.models.minilm import DIMENSIONS
from support.processes import slots
from support.processes.background import wait_until
from support.processes.local_endpoint import LocalEndpoint
from support.processes.openai_clients import NEWEST, PROXY, TRANSPORT, Host, reached

COUNTED = ANSWERS["Count to ten."]
TAUGHT = "The blue code."
Printed = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module", params=[PROXY, TRANSPORT])
def host(
    request: pytest.FixtureRequest,
    make_endpoint: LocalEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    with reached(request.param, make_endpoint, tmp_path_factory.mktemp("proxy") / "log") as found:
        yield found


every_version = pytest.mark.parametrize("version", ["1", "2", NEWEST])


@pytest.fixture(scope="module")
def printed(host: Host) -> Printed:
    """Return the answers that a version got, once."""
    return functools.cache(lambda version: host.printed(version, "endpoint"))


@every_version
def test_a_chat_is_the_same_whole_and_streamed_with_asyncio_and_without(
    version: str, printed: Printed
) -> None:
    answers = printed(version)
    for found in (answers["chats"], answers["async"]):
        assert found["whole"] == COUNTED
        # vLLM joins the tokens that nobody has read yet: of all but the first, on a busy machine.
        assert ("".join(found["pieces"]), len(found["pieces"]) > 1) == (COUNTED, True)


@every_version
def test_embeddings_models_and_errors_are_the_workers(version: str, printed: Printed) -> None:
    found = printed(version)["chats"]
    assert found["embeddings"] == [DIMENSIONS] * 2
    assert {"demo", "tiny/demo", "minilm"} <= set(found["models"])
    assert (found["refusal"]["code"], "gpt-4" in found["refusal"]["message"]) == (404, True)


@every_version
def test_a_fine_tune_is_followed_to_an_adapter_that_answers(version: str, printed: Printed) -> None:
    found = printed(version)["fine-tunes"]
    assert (found["status"], found["error"]) == ("succeeded", None)
    assert set(found["events"]) == {"message", "metrics"}
    assert len(found["events"]) > 5
    assert len(found["checkpoints"]) == 3
    assert set(found["checkpoints"]) <= set(found["models"])
    assert found["taught"] == TAUGHT != found["base"]


@every_version
def test_another_is_cancelled_and_both_are_listed(version: str, printed: Printed) -> None:
    found = printed(version)["fine-tunes"]
    assert (found["cancel"], found["listed"]) == ("cancelled", True)


@every_version
def test_who_leaves_has_cancelled_the_job_and_its_slot_is_free(
    version: str, host: Host, make_endpoint: LocalEndpoint
) -> None:
    def cancelled(id: str) -> bool:
        job = make_endpoint.control(f"jobs/{id.removeprefix('chatcmpl-')}")
        status: str = job["status"]
        return status == "CANCELLED"

    before = slots.count(make_endpoint, slots.ENDED_BY_LENGTH)
    ids = host.printed(version, "leaving")["ids"]
    wait_until(lambda: all(map(cancelled, ids)))
    assert slots.freed_without_an_end(make_endpoint, before)
