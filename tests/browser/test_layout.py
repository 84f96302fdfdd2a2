"""The page for all its readers: themes, narrow screens, keyboards and screen readers."""

from typing import Any

import pytest
from browser.pages import Pages
from playwright.sync_api import Page, expect
from support import ROOT
from support.processes.servers import LocalEndpoint

AXE = ROOT / ".nox" / "npm" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
TABS = ("Chat", "Jobs", "Files", "Fine-tunes", "Receipts")


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_defect(
    pages: Pages, console_endpoint: LocalEndpoint, theme: Any, tab: str
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed")
    # The page's own policy allows no other script.
    page = pages.open(console_endpoint.root_url, color_scheme=theme, bypass_csp=True)
    open_tab(page, tab)
    page.add_script_tag(path=AXE)
    violations = page.evaluate("async () => (await axe.run()).violations")
    assert [
        (violation["id"], [node["html"] for node in violation["nodes"]])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ] == []


@pytest.mark.parametrize("tab", TABS)
def test_a_narrow_screen_needs_no_horizontal_scrolling(
    pages: Pages, console_endpoint: LocalEndpoint, tab: str
) -> None:
    page = pages.open(console_endpoint.root_url, viewport={"width": 380, "height": 720})
    open_tab(page, tab)
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 380


def test_a_keyboard_is_enough_to_chat(pages: Pages, console_endpoint: LocalEndpoint) -> None:
    page = pages.open(console_endpoint.root_url)
    message = page.get_by_role("textbox", name="Message")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("demo")
    for _ in range(40):
        if message.evaluate("field => field === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(message).to_be_focused()
    page.keyboard.type("Count to ten.")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("log", name="Conversation")).to_contain_text("nine, ten")


def test_the_panel_of_the_address_stays_after_a_reload(
    pages: Pages, console_endpoint: LocalEndpoint
) -> None:
    page = pages.open(console_endpoint.root_url)
    open_tab(page, "Files")
    page.reload()
    expect(page.get_by_role("tabpanel", name="Files")).to_be_visible()
    expect(page.get_by_role("tabpanel", name="Chat")).to_be_hidden()
