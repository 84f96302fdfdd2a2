"""The receipts of a page's requests."""

import json

import pytest
from browser.pages import Pages
from playwright.sync_api import expect
from support.processes.servers import LocalEndpoint


def test_the_receipts_of_chats_and_jobs_add_up(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = pages.open(console_endpoint.root_url)
    for count in (1, 2):
        page.get_by_role("textbox", name="Message").fill("Count to ten.")
        page.get_by_role("button", name="Send").click()
        # The line below each answer.
        expect(page.get_by_text("GPU s ·")).to_have_count(count)
    page.get_by_role("tab", name="Jobs").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_label("Output")).to_contain_text("receipt")
    page.get_by_role("tab", name="Receipts").click()
    rows = page.get_by_role("table", name="Receipts").get_by_role("row")
    expect(rows).to_have_count(5)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSONL").click()
    receipts = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [receipt["route"] for receipt in receipts].count("/v1/chat/completions") == 2
    tokens = ("prompt", "cached", "completion")
    sums = [sum(receipt["tokens"][kind] for receipt in receipts) for kind in tokens]
    total = list(filter(None, rows.last.get_by_role("cell").all_inner_texts()))
    assert total[:4] == ["Total of 3", *map(str, sums)]
    seconds = sum(receipt["gpu_seconds"] for receipt in receipts)
    cost = sum(receipt["cost_usd"] for receipt in receipts)
    assert seconds > 0
    # Each of the three rows is rounded, to four and six digits, before it is added.
    assert float(total[4]) == pytest.approx(seconds, abs=3 * 0.5e-4)
    assert float(total[5]) == pytest.approx(cost, abs=3 * 0.5e-6)
    assert cost == pytest.approx(seconds * 0.0003, abs=1e-5)
