"""The endpoint's API key: which routes need it, and how it is sent."""

import pytest
from support.processes.emulator_client import Client, emulator_client

KEY = "secret"
# Method and path of every route, and its status for an authorized request.
FOR_CALLERS = [
    ("POST", "/run", 400),
    ("POST", "/runsync", 400),
    ("GET", "/stream/nope", 404),
    ("GET", "/status/nope", 404),
    ("POST", "/cancel/nope", 404),
    ("POST", "/retry/nope", 404),
    ("POST", "/purge-queue", 200),
    ("GET", "/health", 200),
    ("POST", "/openai/v1/completions", 400),
    ("GET", "/control/faults", 200),
    ("POST", "/control/faults", 400),
    ("DELETE", "/control/faults", 200),
    ("GET", "/control/jobs", 200),
    ("GET", "/control/jobs/nope", 404),
    ("GET", "/control/workers", 200),
    ("POST", "/control/workers/nope/signal", 404),
]
FOR_WORKERS = [
    ("GET", "/job-take/w", 204),
    ("GET", "/job-take-batch/w?batch_size=2", 204),
    ("GET", "/job-stop/w", 204),
    ("POST", "/job-stream/w/nope", 404),
    ("POST", "/job-done/w/nope", 404),
    ("GET", "/ping/w", 200),
]
WRONG = [None, "", "Bearer", "Bearer ", "wrong", "Bearer wrong", "Bearer secret2", "Basic secret"]


Route = tuple[str, str, int]


async def call_routes(
    client: Client, routes: list[Route], header: str | None
) -> list[tuple[Route, object]]:
    """Call the routes; return each with the status that it answered, and the body."""
    headers = {} if header is None else {"Authorization": header}
    answers = []
    for method, path, _ in routes:
        status, answer = await client.request(method, path, headers=headers)
        answers.append(((method, path, status), answer))
    return answers


@pytest.mark.parametrize("header", WRONG)
async def test_a_caller_without_the_key_or_with_another_is_refused(header: str | None) -> None:
    async with emulator_client(api_key=KEY) as client:
        for (method, path, status), answer in await call_routes(client, FOR_CALLERS, header):
            where = client.url(path).removeprefix(client.emulator.root_url)
            message = f"{method} {where}: the API key is missing or wrong"
            assert (status, answer) == (401, {"error": message})


async def test_a_key_that_is_no_text_is_wrong_too() -> None:
    async with emulator_client(api_key=KEY) as client:
        answer = await client.raw("GET", "/health", headers=b"Authorization: Bearer \xff\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("key", [KEY, "clé"])
@pytest.mark.parametrize("word", ["Bearer ", ""])
async def test_the_key_is_taken_with_the_word_bearer_and_without(word: str, key: str) -> None:
    async with emulator_client(api_key=key) as client:
        answers = await call_routes(client, FOR_CALLERS, word + key)
        assert [route for route, _ in answers] == FOR_CALLERS


@pytest.mark.parametrize("header", [None, "Bearer local"])
async def test_a_worker_needs_no_key(header: str | None) -> None:
    async with emulator_client(api_key=KEY) as client:
        answers = await call_routes(client, FOR_WORKERS, header)
        assert [route for route, _ in answers] == FOR_WORKERS


@pytest.mark.parametrize("header", [None, "Bearer any", "any"])
async def test_where_no_key_is_set_none_is_needed_and_any_is_accepted(header: str | None) -> None:
    async with emulator_client() as client:
        routes = [*FOR_CALLERS, *FOR_WORKERS]
        answers = await call_routes(client, routes, header)
        assert [route for route, _ in answers] == routes
