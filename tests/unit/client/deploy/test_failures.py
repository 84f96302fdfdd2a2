"""What the platform's refusals and silences become."""

import os

import httpx
import pytest
from support.runpod_api.server import KEY, Fault, Platform
from unit.client.deploy.conftest import FLAGS, Run, addresses

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.calls import Addresses, Calls
from llm_worker_client.deploy.errors import PlanError, Problem, Unreachable


@pytest.mark.parametrize("command", ["plan", "apply"])
@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "make a new one"), (403, "write access"), (404, ""), (409, ""), (422, "")],
)
def test_a_refusal_is_told_with_its_fields_and_not_tried_again(
    run: Run, there: Platform, command: str, status: int, advice: str
) -> None:
    verb = "GET" if command == "plan" else "POST"
    errors = ["$.gpu.pools: unknown pool", "$.disk: too large"]
    there.faults.append(Fault(verb, status, detail="can't be", errors=errors, times=9))
    code, out, err = run(command, *FLAGS)
    assert (code, out) == (1, "")
    assert f"{verb} /v2/serverless: {status} " in err
    for text in ("can't be", advice, *errors):
        assert text in err
    assert [call.verb for call in there.calls].count(verb) == 1
    assert there.endpoints == {}


def test_a_wrong_key_is_told_by_the_platform(run: Run, there: Platform) -> None:
    os.environ["RUNPOD_API_KEY"] = "rpa_wrongwrongwrong"
    code, _, err = run("status", "chat")
    assert code == 1
    assert "401" in err
    assert "rpa_wrong" not in err


@pytest.mark.parametrize("status", [429, 500, 503])
def test_reading_is_tried_again_where_the_platform_is_busy(
    api: Api, there: Platform, pauses: list[float], status: int
) -> None:
    there.add(name="chat")
    there.faults.append(Fault("GET", status, times=4, headers={"Retry-After": "7"}))
    assert api.get("chat")["id"] == "ep1"
    assert pauses == [7.0] * 4


def test_pauses_grow_where_the_platform_names_none(
    api: Api, there: Platform, pauses: list[float]
) -> None:
    there.faults.append(Fault("GET", 503, times=9))
    with pytest.raises(Problem) as raised:
        api.find("chat")
    assert raised.value.status == 503
    assert len(pauses) == 4
    assert pauses == sorted(pauses)


def test_a_pause_of_more_than_a_minute_is_told_instead(
    api: Api, there: Platform, pauses: list[float]
) -> None:
    there.faults.append(Fault("GET", 429, headers={"Retry-After": "3600"}))
    with pytest.raises(Problem, match="try again in 3600 s"):
        api.find("chat")
    assert pauses == []


@pytest.mark.parametrize("status", [429, 500])
def test_creating_and_changing_are_not_tried_again(
    api: Api, there: Platform, pauses: list[float], status: int
) -> None:
    there.faults += [Fault("POST", status), Fault("PATCH", status)]
    with pytest.raises(Problem):
        api.create({})
    with pytest.raises(Problem):
        api.change("ep1", {})
    assert [call.verb for call in there.calls] == ["POST", "PATCH"]
    assert pauses == []


def test_a_deletion_whose_answer_was_lost_has_succeeded(api: Api, there: Platform) -> None:
    there.add(name="chat")
    there.faults.append(Fault("DELETE", 503, carried_out=True))
    api.delete("ep1")
    assert [call.verb for call in there.calls] == ["DELETE", "DELETE"]


def test_a_creation_without_an_answer_is_looked_for(there: Platform, pauses: list[float]) -> None:
    there.faults.append(Fault("POST", 0, carried_out=True))
    impatient = Api(Calls(KEY, pauses.append, httpx.Timeout(1.0)), addresses(there))
    body = {"name": "chat", "type": "QUEUE", "image": "a/b:1", "gpu": {"pools": ["ADA_24"]}}
    body["scaling"] = {"type": "QUEUE_DELAY", "queueDelay": 4}
    assert impatient.create(body)["id"] == "ep1"
    impatient.calls.close()


def test_a_platform_that_does_not_answer_is_unreachable(
    there: Platform, pauses: list[float]
) -> None:
    there.faults.append(Fault("GET", 0, times=9))
    impatient = Api(Calls(KEY, pauses.append, httpx.Timeout(0.05)), addresses(there))
    with pytest.raises(Unreachable, match="no answer in time"):
        impatient.find("chat")
    # The platform counts a call when it reads it, which may be later.
    assert len(pauses) == 4
    impatient.calls.close()


def test_a_redirect_is_a_failure_and_nobody_else_gets_the_key(api: Api, there: Platform) -> None:
    headers = {"Location": f"{there.url}/elsewhere"}
    there.faults.append(Fault("GET", 302, headers=headers))
    with pytest.raises(Problem):
        api.find("chat")
    assert [call.path for call in there.calls] == ["/v2/serverless"]


def test_the_key_is_sent_in_the_clear_to_this_machine_only() -> None:
    with pytest.raises(PlanError, match="https only"):
        Addresses("http://api.runpod.io/v2")


@pytest.mark.parametrize("address", ["https://", "https://api:port/v2", "https://\x00", "api"])
def test_what_is_no_address_is_told(run: Run, address: str) -> None:
    status, _, err = run("status", "chat", "--api-url", address)
    assert (status, err.startswith(address)) == (2, True)


@pytest.mark.parametrize("content", ["null", "[]", "<html>"])
def test_an_answer_that_is_not_the_platforms_is_told(
    there: Platform, content: str, pauses: list[float]
) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=content)

    calls = Calls(KEY, pauses.append)
    calls._http = httpx.Client(transport=httpx.MockTransport(answer))
    with pytest.raises(Unreachable, match="no JSON object"):
        Api(calls, addresses(there)).find("chat")
    calls.close()


def test_without_a_key_nothing_is_asked(run: Run, there: Platform) -> None:
    del os.environ["RUNPOD_API_KEY"]
    code, _, err = run("status", "chat")
    assert (code, there.calls) == (1, [])
    assert "RUNPOD_API_KEY" in err


@pytest.mark.parametrize("key", ["rpa_with a space", "rpa_wíth", "rpa_with\nline"])
def test_a_key_that_no_header_can_carry_is_refused(run: Run, there: Platform, key: str) -> None:
    os.environ["RUNPOD_API_KEY"] = key
    code, out, err = run("status", "chat")
    assert (code, there.calls) == (2, [])
    assert "characters that no key has" in err
    assert "rpa_w" not in out + err


def test_a_key_with_a_line_break_behind_it_is_taken(run: Run, there: Platform) -> None:
    os.environ["RUNPOD_API_KEY"] = KEY + "\n"
    there.add(name="chat")
    assert run("status", "chat")[0] == 0
