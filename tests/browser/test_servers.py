"""The page as each server sends it, with and without a key."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from browser.pages import Pages
from browser.scripted import scripted_chat
from playwright.sync_api import Page, expect
from support.processes.servers import KEY, LocalEndpoint, client_proxy, http_worker

TEN = "one, two, three, four, five, six, seven, eight, nine, ten"


def chat(page: Page) -> None:
    page.get_by_role("textbox", name="Message").fill("Count to ten.")
    page.get_by_role("button", name="Send").click()


def enter_key(page: Page, key: str) -> None:
    field = page.get_by_role("textbox", name="API key")
    field.fill(key)
    field.press("Enter")


def check_key(page: Page, pages: Pages) -> None:
    """Check that a page asks for the key, displays the refusal of a wrong one, and then answers."""
    chat(page)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("enter it at the top of the page")
    pages.expect_problem("status of 401")
    enter_key(page, "wrong")
    expect(alert).to_contain_text("wrong")
    enter_key(page, KEY)
    chat(page)
    expect(page.get_by_role("log", name="Conversation")).to_contain_text(TEN)


def test_a_worker_serves_the_page_without_its_key_and_answers_calls_with_it(
    pages: Pages, worker_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**worker_environ, "SERVE_API_KEY": KEY, "BASE_PATH": str(tmp_path)}
    with http_worker(environ, tmp_path / "log", "--console") as worker:
        check_key(pages.open(worker.url), pages)


def test_the_proxy_serves_the_page_and_its_chat(
    pages: Pages, console_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    with client_proxy(console_endpoint.api_url, tmp_path / "log") as proxy:
        page = pages.open(proxy.url)
        chat(page)
        expect(page.get_by_role("log", name="Conversation")).to_contain_text(TEN)


def test_an_endpoint_serves_the_page_without_its_key_and_answers_calls_with_it(
    pages: Pages,
) -> None:
    async def chunks() -> AsyncIterator[Sequence[str]]:
        yield [TEN]

    with scripted_chat(chunks, api_key=KEY) as emulator:
        check_key(pages.open(emulator.root_url), pages)
