"""Refusals and missing responses of the platform."""

import os
from contextlib import closing

import httpx2
import pytest
from support.runpod_api.server import KEY, Fault, Runpod
from unit.client.deploy.conftest import FLAGS, Run

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import ApiError, NoResponse
from llm_worker_client.terminal import make_printable

BODY = {"name": "chat", "type": "QUEUE", "image": "a/b:1", "gpu": {"pools": ["ADA_24"]}}
BODY |= {"scaling": {"type": "QUEUE_DELAY", "queueDelay": 4}}


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "make a new one"), (403, "write access"), (404, ""), (409, ""), (422, "")],
)
def test_a_refusal_is_reported_with_its_fields_and_not_retried(
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
    ("key", "status", "message", "calls_platform"),
    [
        ("rpa_wrongwrongwrong", 1, "401", True),
        ("rpa_with a space", 2, "characters that no key has", False),
        ("rpa_wíth", 2, "characters that no key has", False),
        ("rpa_with\nline", 2, "characters that no key has", False),
        (f"{KEY}\n", 0, "", True),
        ("", 1, "RUNPOD_API_KEY", False),
    ],
    ids=["wrong", "a space", "not ASCII", "a line break", "a trailing line break", "none"],
)
def test_a_malformed_key_is_not_sent_and_no_key_is_printed(
    run: Run, runpod: Runpod, key: str, status: int, message: str, calls_platform: bool
) -> None:
    runpod.add(name="chat")
    os.environ["RUNPOD_API_KEY"] = key
    code, out, err = run("status", "chat")
    assert (code, message in err, bool(runpod.calls)) == (status, True, calls_platform)
    assert "rpa_w" not in out + err


@pytest.mark.parametrize("status", [429, 500])
def test_reads_are_retried_while_the_platform_is_busy(
    api: Api, runpod: Runpod, pauses: list[float], status: int
) -> None:
    runpod.add(name="chat")
    runpod.faults.append(Fault("GET", status, times=4, headers={"Retry-After": "7"}))
    assert api.endpoint_by_name_or_id("chat")["id"] == "ep1"
    assert pauses == [7.0] * 4


def test_pauses_grow_if_the_platform_names_none(
    api: Api, runpod: Runpod, pauses: list[float]
) -> None:
    runpod.faults.append(Fault("GET", 503, times=9))
    with pytest.raises(ApiError) as raised:
        api.find_endpoint_by_name("chat")
    assert (raised.value.status, len(pauses)) == (503, 4)
    assert pauses == sorted({*pauses})


def test_too_long_a_pause_is_an_error(api: Api, runpod: Runpod, pauses: list[float]) -> None:
    runpod.faults.append(Fault("GET", 429, headers={"Retry-After": "3600"}))
    with pytest.raises(ApiError, match="try again in 3600 s"):
        api.find_endpoint_by_name("chat")
    assert pauses == []


def test_a_deletion_without_a_response_has_succeeded(api: Api, runpod: Runpod) -> None:
    runpod.add(name="chat")
    runpod.faults.append(Fault("DELETE", 503, takes_effect=True))
    api.delete_endpoint("ep1")
    assert [call.verb for call in runpod.calls] == ["DELETE", "DELETE"]


def test_an_endpoint_whose_creation_had_no_response_is_looked_up(api: Api, runpod: Runpod) -> None:
    runpod.faults.append(Fault("POST", -1, takes_effect=True))
    assert api.create_endpoint(BODY)["id"] == "ep1"


def test_a_silent_platform_is_unreachable(runpod: Runpod, pauses: list[float]) -> None:
    runpod.faults.append(Fault("GET", 0, times=9))
    api = Api(KEY, f"{runpod.url}/v2", sleep=pauses.append, timeout_s=0.05)
    with closing(api), pytest.raises(NoResponse, match="no answer in time"):
        api.find_endpoint_by_name("chat")
    # The platform counts a call only when it reads it, which may be later.
    assert len(pauses) == 4


def test_a_redirect_is_an_error_and_the_key_goes_to_no_other_address(
    api: Api, runpod: Runpod
) -> None:
    runpod.faults.append(Fault("GET", 302, headers={"Location": f"{runpod.url}/elsewhere"}))
    with pytest.raises(ApiError):
        api.find_endpoint_by_name("chat")
    assert [call.path for call in runpod.calls] == ["/v2/serverless"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((address, "") for address in ("https://", "https://api:port/v2", "https://\x00", "api")),
        # The key may be sent unencrypted to this machine only.
        ("http://api.runpod.io/v2", "https only"),
    ],
)
def test_an_invalid_address_is_reported(run: Run, address: str, message: str) -> None:
    status, _, err = run("status", "chat", "--api-url", address)
    assert (status, err.startswith(make_printable(address)), message in err) == (2, True, True)


@pytest.mark.parametrize("content", ["null", "[]", "<html>"])
def test_a_response_that_is_not_a_json_object_is_an_error(api: Api, content: str) -> None:
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, text=content))
    api._http = httpx2.Client(transport=answer)
    with pytest.raises(NoResponse, match="not a JSON object"):
        api.find_endpoint_by_name("chat")
