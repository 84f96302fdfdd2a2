"""Who is answered: with a key, without one, and what load balancers may ask."""

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, tokens
from support.served import client, error_of

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
KEY = {"SERVE_API_KEY": "sk-right"}


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize("method", ["POST", "PUT", "TRACE", "BREW"])
async def test_what_is_open_to_all_takes_no_body(path: str, method: str) -> None:
    with ScriptedEngine() as engine:
        async with client(engine, **KEY) as http:
            response = await http.request(method, path, content=b"[" * 100_000)
    assert response.status_code == 405
    assert "only GET is taken" in error_of(response)["message"]


async def test_ping_succeeds_only_while_the_engine_lives() -> None:
    with ScriptedEngine() as engine:
        async with client(engine) as http:
            assert (await http.get("/ping")).status_code == 200
            engine.mark_dead()
            assert (await http.get("/ping")).status_code == 503


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sk-wrong"},
        {"authorization": "sk-right"},
        {"x-api-key": "é"},
        {"authorization": "Basic c2std3Jvbmc6"},
        {"authorization": "Basic é"},
        {"authorization": "Basic c2s"},
    ],
)
async def test_with_a_key_set_a_request_with_another_is_refused(headers: dict[str, str]) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    with ScriptedEngine(*tokens("a")) as engine:
        async with client(engine, **KEY) as http:
            response = await http.post(CHAT, json=HELLO, headers=sent)
    assert response.status_code == 401
    assert error_of(response)["type"] == "UnauthorizedError"
    assert "sk-right" not in response.text
    assert engine.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "bearer sk-right"},
        {"x-api-key": "sk-right"},
        {"authorization": "Basic c2stcmlnaHQ6"},
        {"authorization": "Basic c2std3Jvbmc6", "x-api-key": "sk-right"},
    ],
)
async def test_with_a_key_set_a_request_with_it_is_answered(headers: dict[str, str]) -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        async with client(engine, **KEY) as http:
            assert (await http.post(CHAT, json=HELLO, headers=headers)).status_code == 200


async def test_a_load_balancer_needs_no_key() -> None:
    with ScriptedEngine() as engine:
        async with client(engine, **KEY) as http:
            assert (await http.get("/ping")).status_code == 200
            assert (await http.get("/health")).status_code != 401


async def test_llm_engines_client_finds_the_message_of_an_error_where_it_looks() -> None:
    basic = {"authorization": "Basic c2stcmlnaHQ6"}
    with ScriptedEngine() as engine:
        async with client(engine, **KEY) as http:
            wrong = await http.post(CHAT, json={"messages": 5}, headers=basic)
            unread = await http.post(CHAT, content=b"[", headers=basic)
            others = await http.post(CHAT, json={"messages": 5}, headers={"x-api-key": "sk-right"})
    for response in (wrong, unread):
        assert response.json()["detail"] == error_of(response)["message"]
    assert "detail" not in others.json()
