"""Who is answered: with a key, without one, and what load balancers may ask."""

import pytest
from support.engine.scripted import CHAT
from support.served import HELLO, KEY, Served, error_of


@pytest.fixture
def environ() -> dict[str, str]:
    return KEY


async def test_ping_needs_no_key_but_a_living_engine(http_client: Served) -> None:
    assert (await http_client.get("/ping")).status_code == 200
    assert (await http_client.get("/health")).status_code == 200
    http_client.engine.mark_dead()
    assert (await http_client.get("/ping")).status_code == 503


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", "Bearer sk-wrong"),
        ("authorization", "sk-right"),
        ("x-api-key", "é"),
        ("authorization", "Basic c2std3Jvbmc6"),
        ("authorization", "Basic é"),
        ("authorization", "Basic c2s"),
        ("accept", "*/*"),
    ],
)
async def test_any_other_key_is_refused(http_client: Served, name: str, value: str) -> None:
    headers = {name.encode(): value.encode()}
    response = await http_client.post(CHAT, json=HELLO, headers=headers)
    assert (response.status_code, error_of(response)["type"]) == (401, "UnauthorizedError")
    assert "sk-right" not in response.text
    assert http_client.engine.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "bearer sk-right"},
        {"x-api-key": "sk-right"},
        {"authorization": "Basic c2stcmlnaHQ6"},
        {"authorization": "Basic c2std3Jvbmc6", "x-api-key": "sk-right"},
    ],
)
async def test_the_key_is_found_wherever_it_is(
    http_client: Served, headers: dict[str, str]
) -> None:
    assert (await http_client.post(CHAT, json=HELLO, headers=headers)).status_code == 200
