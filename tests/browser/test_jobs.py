"""Raw jobs, the table of jobs, workers and faults."""

import json
import re
from functools import partial
from typing import Any

from browser.pages import Pages, wait_until
from playwright.sync_api import Locator, Page, expect
from support.engine.requests import ENDLESS
from support.processes.servers import LocalEndpoint

RUNNING = "vllm:num_requests_running"
GENERATED = "vllm:generation_tokens_total"
STREAM = {
    "messages": [{"role": "user", "content": "Count to ten."}],
    "sampling_params": {"max_tokens": 40, "temperature": 0},
    "stream": True,
}
BAR = re.compile("queued .*first chunk .*end ")


def open_jobs(pages: Pages, endpoint: LocalEndpoint) -> Page:
    page = pages.open(endpoint.root_url)
    page.get_by_role("tab", name="Jobs").click()
    return page


def run_job(page: Page, job_input: dict[str, Any]) -> Locator:
    """Run a job; return its row in the table."""
    page.get_by_role("textbox", name="Job input").fill(json.dumps(job_input))
    return press_run(page)


def press_run(page: Page) -> Locator:
    with page.expect_response("**/run") as response:
        page.get_by_role("button", name="Run", exact=True).click()
    job_id = response.value.json()["id"]
    return page.get_by_role("region", name="Jobs").get_by_role("row").filter(has_text=job_id[:8])


def test_an_example_of_the_guide_runs(pages: Pages, console_endpoint: LocalEndpoint) -> None:
    page = open_jobs(pages, console_endpoint)
    page.get_by_role("combobox", name="Example").select_option(index=1)
    assert json.loads(page.get_by_role("textbox", name="Job input").input_value())
    expect(press_run(page)).to_contain_text("completed")


def test_the_output_of_a_job_and_the_bar_of_its_times_appear(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = open_jobs(pages, console_endpoint)
    row = run_job(page, STREAM)
    expect(page.get_by_label("Output")).to_contain_text("ten")
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("worker-1")
    expect(row.get_by_role("img")).to_have_accessible_name(BAR)


def test_the_chunks_of_another_clients_job_appear(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    job = console_endpoint.call("run", {"input": STREAM})["id"]
    page = open_jobs(pages, console_endpoint)
    row = page.get_by_role("region", name="Jobs").get_by_role("row").filter(has_text=job[:8])
    expect(row).to_contain_text("completed")
    row.get_by_role("button", name=f"chunks of {job}").click()
    chunks = console_endpoint.control(f"jobs/{job}")["chunks"]
    lines = [f"chunk {n}: {chunk['bytes']:,} bytes after " for n, chunk in enumerate(chunks, 1)]
    shown = page.get_by_role("status", name="Chunks of a job").inner_text().split("\n")
    assert (len(chunks) > 1, shown[0]) == (True, job)
    assert [re.sub(r"[\d.,]+ m?s$", "", line) for line in shown[1:]] == lines


def test_a_job_cancelled_in_the_table_frees_the_engine(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    before = console_endpoint.read_metric(GENERATED)
    page = open_jobs(pages, console_endpoint)
    row = run_job(page, {"prompt": "Hi", "sampling_params": ENDLESS, "stream": True})
    expect(page.get_by_label("Output")).to_contain_text("tokens")
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("cancelled")
    wait_until(page, lambda: console_endpoint.read_metric(RUNNING) == 0)
    generated = console_endpoint.read_metric(GENERATED) - before
    assert 0 < generated < ENDLESS["n"] * ENDLESS["max_tokens"] / 2


def test_a_fault_fails_the_next_job_with_an_error_on_the_page(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    """The response to a chunk's post is lost: the post may have arrived, and is not repeated."""
    page = open_jobs(pages, console_endpoint)
    faults = page.get_by_role("region", name="Faults")
    faults.get_by_role("combobox", name="Call").select_option("stream")
    faults.get_by_role("combobox", name="Fault").select_option("lose")
    faults.get_by_role("spinbutton", name="Calls").fill("1")
    faults.get_by_role("button", name="Add fault").click()
    expect(faults.get_by_role("listitem")).to_contain_text("lose")
    expect(run_job(page, STREAM)).to_contain_text("failed")
    expect(page.get_by_role("alert")).to_contain_text("Send the request again.")
    expect(run_job(page, STREAM)).to_contain_text("completed")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_killed_worker_is_dead_on_the_page_until_it_is_ready_again(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = open_jobs(pages, console_endpoint)
    worker = page.get_by_role("region", name="Workers").get_by_role("listitem")
    expect(worker).to_contain_text("ready")
    (before,) = console_endpoint.control("workers")["workers"]
    worker.get_by_role("button", name="SIGKILL").click()
    # It is started again after a second, in which the page may not have read its state. After
    # two more deaths during its start, it stays dead for four seconds.
    for starts in (before["starts"] + 1, before["starts"] + 2):
        wait_until(page, partial(is_started, console_endpoint, starts))
        console_endpoint.control("workers/worker-1/signal", {"signal": "SIGKILL"})
    expect(worker).to_contain_text("died")
    row = run_job(page, STREAM)
    expect(row).to_contain_text("in queue")
    expect(worker).to_contain_text("ready")
    expect(row).to_contain_text("completed")


def is_started(endpoint: LocalEndpoint, starts: int) -> bool:
    """Return whether the only worker's process of this number is running."""
    (worker,) = endpoint.control("workers")["workers"]
    return worker["starts"] == starts and worker["pid"] is not None
