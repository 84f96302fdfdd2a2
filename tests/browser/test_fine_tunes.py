"""A fine-tune on the page, and a chat with its adapter."""

import re

from browser.pages import Pages
from playwright.sync_api import expect
from support.processes.servers import LocalEndpoint


def test_a_fine_tune_draws_its_loss_and_its_adapter_answers_in_the_chat(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = pages.open(console_endpoint.root_url)
    page.get_by_role("tab", name="Fine-tunes").click()
    page.get_by_role("button", name="Add example rows").click()
    file = page.get_by_role("combobox", name="Training file")
    expect(file.get_by_role("option", selected=True)).to_have_text("colours.jsonl")
    page.get_by_role("button", name="Create fine-tune").click()
    training = page.get_by_role("region", name="Training")
    expect(training).to_contain_text("succeeded")
    loss = training.get_by_role("figure", name="Loss")
    expect(loss.locator("polyline")).to_have_attribute("points", re.compile(r"(\S+ ){3}"))
    # The text alternative of the curve.
    expect(loss).to_contain_text(re.compile(r"Training loss: \S+ at step 1, \S+ at step \d+"))
    training.get_by_role("button", name="Try this adapter").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value(re.compile(r"demo\.colours\."))
    page.get_by_role("textbox", name="Message").fill("What colour is a token?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("log", name="Conversation")).to_contain_text(
        "A token is green, of course."
    )
