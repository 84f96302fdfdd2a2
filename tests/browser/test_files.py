"""Files and batches."""

import json
import re

from browser.pages import Pages
from playwright.sync_api import FilePayload, Page, expect
from support.batches import lines, to_jsonl
from support.processes.servers import LocalEndpoint


def open_files(pages: Pages, endpoint: LocalEndpoint) -> Page:
    page = pages.open(endpoint.root_url)
    page.get_by_role("tab", name="Files").click()
    return page


def upload(page: Page, name: str, content: bytes) -> None:
    file = FilePayload(name=name, mimeType="application/jsonl", buffer=content)
    page.get_by_label("File", exact=True).set_input_files(files=[file])
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("table", name="Files")).to_contain_text(name)


def test_a_file_is_uploaded_downloaded_and_deleted(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = open_files(pages, console_endpoint)
    content = to_jsonl(lines(3))
    upload(page, "three.jsonl", content)
    row = page.get_by_role("table", name="Files").get_by_role("row").filter(has_text="three.jsonl")
    with page.expect_download() as download:
        row.get_by_role("button", name="Download").click()
    assert download.value.path().read_bytes() == content
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    names = [file["filename"] for file in console_endpoint.call("openai/v1/files")["data"]]
    assert "three.jsonl" not in names


def test_a_batch_shows_that_no_worker_runs_it(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = open_files(pages, console_endpoint)
    show = "(state) => kindOf({ status: 'in_progress', run_state: state }).textContent"
    texts = [page.evaluate(show, state) for state in ("waiting", "queued", "running")]
    assert texts == ["in progress, waits for a worker", "in progress, in line", "in progress"]


def test_a_batch_continues_after_its_worker_was_killed(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = open_files(pages, console_endpoint)
    # Long answers: the page, which polls once a second, sees some of them on a fast machine, too.
    message = {"role": "user", "content": "Hello"}
    questions = lines(400, messages=[message], max_tokens=200, ignore_eos=True)
    upload(page, "questions.jsonl", to_jsonl(questions))
    page.get_by_role("combobox", name="Input file").select_option("questions.jsonl")
    page.get_by_role("button", name="Create batch").click()
    batch = page.get_by_role("table", name="Batches").get_by_role("row").nth(1)
    # The worker has written some lines, but not all.
    expect(batch).to_contain_text(re.compile("[1-9][0-9]* of 400"))
    expect(batch).to_contain_text("in progress")
    console_endpoint.control("workers/worker-1/signal", {"signal": "SIGKILL"})
    expect(batch).to_contain_text("completed")
    with page.expect_download() as download:
        batch.get_by_role("button", name="Output").click()
    output = download.value.path().read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in output] == [
        line["custom_id"] for line in questions
    ]
    assert console_endpoint.control("workers")["workers"][0]["starts"] > 1
