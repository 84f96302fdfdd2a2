"""What the platform's refusals and silences become."""

import os
from collections.abc import Callable

import httpx2
import pytest
from support.runpod_api.server import KEY, Fault, Runpod
from unit.client.deploy.conftest import FLAGS, Run

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import NoAnswer, Problem

OpenApi = Callable[..., Api]
BODY = {"name": "chat", "type": "QUEUE", "image": "a/b:1", "gpu": {"pools": ["ADA_24"]}}
BODY |= {"scaling": {"type": "QUEUE_DELAY", "queueDelay": 4}}


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "make a new one"), (403, "write access"), (404, ""), (409, ""), (422, "")],
)
def test_a_refusal_is_told_with_its_fields_and_not_tried_again(
    run: Run, runpod: Runpod, status: int, advice: str
) -> None:
    errors = ["$.gpu.pools: unknown pool", "$.disk: too large"]
    runpod.faults.append(Fault("POST", status, detail="can't be", errors=errors, times=9))
    code, out, err = run("apply", *FLAGS)
    assert (code, out, runpod.endpoints) == (1, "", {})
    for text in (f"POST /v2/serverless: {status} ", "can't be", advice, *errors):
        assert text in err
    assert [call.verb for call in runpod.calls] == ["GET", "POST"]


@pytest.mark.parametrize(
    ("key", "status", "says", "asks"),
    [
        ("rpa_wrongwrongwrong", 1, "401", True),
        ("rpa_with a space", 2, "characters that no key has", False),
        ("rpa_wíth", 2, "characters that no key has", False),
        ("rpa_with\nline", 2, "characters that no key has", False),
        (f"{KEY}\n", 0, "", True),
        ("", 1, "RUNPOD_API_KEY", False),
    ],
    ids=["wrong", "a space", "no ASCII", "a line break", "a line break behind it", "none"],
)
def test_a_key_is_used_or_refused_and_not_shown(
    run: Run, runpod: Runpod, key: str, status: int, says: str, asks: bool
) -> None:
    runpod.add(name="chat")
    os.environ["RUNPOD_API_KEY"] = key
    code, out, err = run("status", "chat")
    assert (code, says in err, bool(runpod.calls)) == (status, True, asks)
    assert "rpa_w" not in out + err


@pytest.mark.parametrize("status", [429, 500, 503])
def test_reading_is_tried_again_where_the_platform_is_busy(
    api: Api, runpod: Runpod, pauses: list[float], status: int
) -> None:
    runpod.add(name="chat")
    runpod.faults.append(Fault("GET", status, times=4, headers={"Retry-After": "7"}))
    assert api.get("chat")["id"] == "ep1"
    assert pauses == [7.0] * 4


def test_pauses_grow_where_none_are_named(api: Api, runpod: Runpod, pauses: list[float]) -> None:
    runpod.faults.append(Fault("GET", 503, times=9))
    with pytest.raises(Problem) as raised:
        api.find("chat")
    assert (raised.value.status, len(pauses)) == (503, 4)
    assert pauses == sorted({*pauses})


def test_too_long_a_pause_is_told_instead(api: Api, runpod: Runpod, pauses: list[float]) -> None:
    runpod.faults.append(Fault("GET", 429, headers={"Retry-After": "3600"}))
    with pytest.raises(Problem, match="try again in 3600 s"):
        api.find("chat")
    assert pauses == []


def test_a_deletion_whose_answer_was_lost_has_succeeded(api: Api, runpod: Runpod) -> None:
    runpod.add(name="chat")
    runpod.faults.append(Fault("DELETE", 503, carried_out=True))
    api.delete("ep1")
    assert [call.verb for call in runpod.calls] == ["DELETE", "DELETE"]


def test_a_creation_without_an_answer_is_looked_for(api: Api, runpod: Runpod) -> None:
    runpod.faults.append(Fault("POST", -1, carried_out=True))
    assert api.create(BODY)["id"] == "ep1"


def test_silence_is_unreachable(open_api: OpenApi, runpod: Runpod, pauses: list[float]) -> None:
    runpod.faults.append(Fault("GET", 0, times=9))
    with pytest.raises(NoAnswer, match="no answer in time"):
        open_api(0.05).find("chat")
    # The platform counts a call when it reads it, which may be later.
    assert len(pauses) == 4


def test_a_redirect_is_a_failure_and_nobody_else_gets_the_key(api: Api, runpod: Runpod) -> None:
    runpod.faults.append(Fault("GET", 302, headers={"Location": f"{runpod.url}/elsewhere"}))
    with pytest.raises(Problem):
        api.find("chat")
    assert [call.path for call in runpod.calls] == ["/v2/serverless"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        *((one, "") for one in ("https://", "https://api:port/v2", "https://\x00", "api")),
        # The key is sent in the clear to this machine only.
        ("http://api.runpod.io/v2", "https only"),
    ],
)
def test_what_is_no_address_is_told(run: Run, address: str, says: str) -> None:
    status, _, err = run("status", "chat", "--api-url", address)
    assert (status, err.startswith(address), says in err) == (2, True, True)


@pytest.mark.parametrize("content", ["null", "[]", "<html>"])
def test_an_answer_that_is_not_the_platforms_is_told(api: Api, content: str) -> None:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, text=content))
    api._http = httpx2.Client(transport=answer)
    with pytest.raises(NoAnswer, match="no JSON object"):
        api.find("chat")
