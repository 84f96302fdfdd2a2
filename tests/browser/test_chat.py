"""The chat, and its ruler of chunks."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from browser.pages import Pages, wait_until
from browser.scripted import scripted_chat
from playwright.sync_api import Dialog, Locator, Page, Route, expect
from support.engine.requests import ENDLESS
from support.processes.servers import LocalEndpoint

STORY = "Tell me the story of a job."
END_OF_STORY = "already knocking at the door."
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    "[a link](javascript:alert(3))",
    "<a href='javascript:alert(4)'>here</a>",
    "&lt;b&gt; <style>body{display:none}</style>",
)
RUNNING = "vllm:num_requests_running"
GENERATED = "vllm:generation_tokens_total"
TOKENS = 5000


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()


def conversation(page: Page) -> Locator:
    return page.get_by_role("log", name="Conversation")


def chunk_sizes(page: Page) -> list[int]:
    """Return the tokens of each chunk that the ruler draws."""
    boxes = page.get_by_label("Chunks", exact=True).get_by_role("listitem")
    names = boxes.evaluate_all("boxes => boxes.map(box => box.getAttribute('aria-label'))")
    return [int(name.split()[0]) for name in names]


def test_the_page_names_the_model_and_its_adapter(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = pages.open(console_endpoint.root_url)
    model = page.get_by_role("combobox", name="Model")
    expect(model).to_have_value("demo")
    expect(model.get_by_role("option")).to_have_text(["demo", "shout (adapter)"])


def test_an_answer_grows_before_it_ends(pages: Pages) -> None:
    is_read = threading.Event()

    async def chunks() -> AsyncIterator[Sequence[str]]:
        yield ["The first"]
        await asyncio.to_thread(is_read.wait)
        yield [" and the last words."]

    with scripted_chat(chunks) as emulator:
        page = pages.open(emulator.root_url)
        ask(page, "Hello!")
        expect(conversation(page)).to_contain_text("The first")
        expect(page.get_by_role("button", name="Stop")).to_be_enabled()
        is_read.set()
        expect(conversation(page)).to_contain_text("The first and the last words.")
        expect(page.get_by_role("button", name="Stop")).not_to_be_enabled()


def test_the_ruler_draws_chunks_that_grow_by_the_factor_of_the_slider(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = pages.open(console_endpoint.root_url)
    # On a slow machine, tokens that have waited for too long would leave with smaller chunks.
    page.get_by_role("slider", name="Longest wait").fill("0")
    ask(page, STORY)
    expect(conversation(page)).to_contain_text(END_OF_STORY)
    assert chunk_sizes(page)[:4] == [1, 3, 9, 27]
    page.get_by_role("slider", name="Growth").fill("2")
    wait_until(page, lambda: chunk_sizes(page)[:6] == [1, 2, 4, 8, 16, 32])
    expect(conversation(page)).to_contain_text(END_OF_STORY)


def make_endless(route: Route) -> None:
    """Turn the page's request into one that asks for more tokens than any conversation."""
    job: Any = route.request.post_data_json
    job["input"]["openai_input"].update(ENDLESS, temperature=1)
    route.continue_(post_data=json.dumps(job))


def test_stop_frees_the_engine_long_before_the_end_of_the_answer(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    before = console_endpoint.read_metric(GENERATED)
    page = pages.open(console_endpoint.root_url)
    page.route("**/run", make_endless)
    ask(page, "Hello!")
    wait_until(page, lambda: console_endpoint.read_metric(RUNNING) == ENDLESS["n"])
    page.get_by_role("button", name="Stop").click()
    wait_until(page, lambda: console_endpoint.read_metric(RUNNING) == 0)
    generated = console_endpoint.read_metric(GENERATED) - before
    assert 0 < generated < ENDLESS["n"] * ENDLESS["max_tokens"] / 2
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_hostile_text_of_a_model_stays_text(pages: Pages) -> None:
    async def chunks() -> AsyncIterator[Sequence[str]]:
        for text in HOSTILE:
            yield [text]

    with scripted_chat(chunks, model=HOSTILE[0]) as emulator:
        page = pages.open(emulator.root_url)
        dialogs: list[str] = []

        def on_dialog(dialog: Dialog) -> None:
            dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", on_dialog)
        expect(page.get_by_role("combobox", name="Model")).to_have_value(HOSTILE[0])
        before = page.locator("img, script, style, a").count()
        ask(page, HOSTILE[1])
        for text in HOSTILE:
            expect(conversation(page)).to_contain_text(text)
        assert page.locator("img, script, style, a").count() == before
        assert dialogs == []


RECORD_FRAMES = """() => {
    window.gaps = [];
    let last = performance.now();
    const record = () => {
        const now = performance.now();
        window.gaps.push(now - last);
        last = now;
        requestAnimationFrame(record);
    };
    requestAnimationFrame(record);
}"""
TAKE_GAPS = "() => window.gaps.splice(0)"


def test_5000_tokens_do_not_stall_the_page(pages: Pages) -> None:
    """No frame takes ten times as long as the slowest of 100 frames of the idle page."""

    async def chunks() -> AsyncIterator[Sequence[str]]:
        for first in range(0, TOKENS, 25):
            yield [f" word{number}" for number in range(first, first + 25)]
            await asyncio.sleep(0.01)

    with scripted_chat(chunks) as emulator:
        page = pages.open(emulator.root_url)
        expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
        page.evaluate(RECORD_FRAMES)
        wait_until(page, lambda: page.evaluate("() => window.gaps.length") > 100)
        idle = page.evaluate(TAKE_GAPS)
        ask(page, "Hello!")
        expect(conversation(page)).to_contain_text(f"word{TOKENS - 1}")
        streaming = page.evaluate(TAKE_GAPS)
        assert len(streaming) > 50
        assert max(streaming) < 10 * max(idle)
