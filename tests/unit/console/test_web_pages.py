"""The rule that refuses web pages of other sites."""

import pytest
from support.tables.web_pages import HERE, REQUESTS

from llm_worker_console.web_pages import PageRefusal, find_page_refusal

CHAT, WORKER = "https://chat.example.com", "https://worker.example.com:8443"


@pytest.mark.parametrize(("headers", "refusal"), REQUESTS)
@pytest.mark.parametrize("allowed", [(), (CHAT, WORKER, "https://[", "x")])
def test_programs_are_answered_and_web_pages_of_other_sites_are_refused(
    headers: dict[str, str], refusal: PageRefusal | None, allowed: tuple[str, ...]
) -> None:
    sent = (headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"))
    assert find_page_refusal(*sent, allowed) is refusal


@pytest.mark.parametrize(
    ("host", "origin", "site", "refusal"),
    [
        (HERE, CHAT, "cross-site", None),
        # A browser doesn't send the origin of a page that shows an image.
        (HERE, None, "cross-site", PageRefusal.FOREIGN_PAGE),
        (HERE, f"{CHAT}.evil.example", "cross-site", PageRefusal.FOREIGN_PAGE),
        (HERE, "http://chat.example.com", "cross-site", PageRefusal.FOREIGN_PAGE),
        # Under a foreign name, the server and the page have the same origin for the browser.
        ("evil.example", CHAT, "same-origin", PageRefusal.FOREIGN_HOST),
        # A reverse proxy of this machine passes on the name by which it was called.
        ("worker.example.com", None, None, None),
        ("Worker.example.com:80", WORKER, "same-origin", None),
        ("worker.example.com", CHAT, "cross-site", None),
        ("worker.example.com", "https://evil.example", "cross-site", PageRefusal.FOREIGN_PAGE),
        ("evil.worker.example.com", None, None, PageRefusal.FOREIGN_HOST),
        ("example.com", None, None, PageRefusal.FOREIGN_HOST),
    ],
)
def test_only_pages_of_allowed_origins_may_call_also_under_their_own_names(
    host: str, origin: str | None, site: str | None, refusal: PageRefusal | None
) -> None:
    assert find_page_refusal(host, origin, site, (CHAT, WORKER)) is refusal
