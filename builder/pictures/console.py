"""Takes pictures of the console page: docs/plots/console-chat.png and console-jobs.png.

    .venv/bin/nox -s pictures

The endpoint runs on the demo model, with two workers, in chromium.
"""

import argparse
import io
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

SIZE = ViewportSize(width=1280, height=830)
COLOURS = 128  # a palette, so that a picture has a third of its bytes
OPTIONS = "--no-sandbox --disable-gpu --disable-background-networking".split()
STORY = "Tell me the story of a job."
START_S = 120.0

expect.set_options(timeout=START_S * 1000)


@contextmanager
def start_endpoint() -> Iterator[str]:
    """Start `make endpoint` with two workers of two slots each; yield the page's address."""
    with tempfile.TemporaryDirectory() as logs:
        settings = ["MAX_CONCURRENCY=2", f"BASE_PATH={logs}", "GPU_PRICE_PER_SECOND=0.00031"]
        command = ["make", "--silent", "endpoint", "PORT=0", "WORKERS=2", f"LOGS={logs}", *settings]
        command.append("OPTIONS=--lost-as requeued")
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, process_group=0
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("The console: ").strip()
            try:
                yield url
            finally:
                os.killpg(process.pid, signal.SIGINT)
                process.communicate()


def open_page(browser: Browser, url: str, panel: str) -> Page:
    """Open a panel of the page, and wait until both workers are ready."""
    page = browser.new_page(viewport=SIZE)
    page.goto(f"{url}#{panel}")
    expect(page.get_by_text("2 of 2 workers ready")).to_be_visible()
    return page


def save(page: Page, file: Path) -> None:
    """Save a picture of the visible part of a page."""
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled")))
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


def take_chat(page: Page, file: Path) -> None:
    """Take a picture of an answer, with the ruler of its chunks."""
    page.get_by_role("textbox", name="Message").fill(STORY)
    page.get_by_role("button", name="Send").click()
    # The answer has ended when its receipt is on the page.
    expect(page.get_by_text("GPU s ·")).to_be_visible()
    page.wait_for_timeout(1000)
    save(page, file)


def run_job(page: Page, url: str, tokens: int) -> None:
    """Queue a raw job for a number of tokens."""
    sampling = {"max_tokens": tokens, "ignore_eos": True, "temperature": 1}
    job = {"prompt": "Once upon a time", "stream": True, "sampling_params": sampling}
    assert page.request.post(f"{url}v2/local/run", data={"input": job}).ok


def kill_worker(page: Page, url: str) -> None:
    """Kill the second worker, and it again during two starts, so that it stays dead for 4 s."""
    for starts in (1, 2, 3):
        while True:
            worker = page.request.get(url).json()["workers"][1]
            if worker["starts"] == starts and worker["pid"]:
                break
            page.wait_for_timeout(50)
        assert page.request.post(f"{url}/worker-2/signal", data={"signal": "SIGKILL"}).ok


def take_jobs(page: Page, url: str, file: Path) -> None:
    """Take a picture of a job's output, a busy worker, a dead one, and a queue."""
    page.get_by_role("combobox", name="Example").select_option(index=1)
    page.get_by_role("button", name="Run", exact=True).click()
    table = page.get_by_role("region", name="Jobs")
    expect(page.get_by_text(": COMPLETED")).to_be_visible()
    for tokens in (120, 300, 60, 420, 200, 90, 1500, 1500, 1500, 1500, 300):
        run_job(page, url, tokens)
    expect(table.get_by_text("completed").nth(6)).to_be_visible()
    kill_worker(page, f"{url}control/workers")
    expect(page.get_by_text("worker-2 died", exact=True)).to_be_visible()
    save(page, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take pictures of the console page.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with start_endpoint() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        take_chat(open_page(browser, url, "chat"), folder / "console-chat.png")
        take_jobs(open_page(browser, url, "jobs"), url, folder / "console-jobs.png")
        browser.close()


if __name__ == "__main__":
    main()
