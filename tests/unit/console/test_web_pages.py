"""The rule that refuses web pages of other sites."""

import pytest
from starlette.datastructures import Headers

from llm_worker_console.web_pages import PageRefusal, find_page_refusal

HERE = "localhost:8000"
CHAT, WORKER = "https://chat.example.com", "https://worker.example.com:8443"
ALLOWED = (CHAT, WORKER, "https://[", "x")
EVIL = "https://evil.example"


@pytest.mark.parametrize(
    "headers",
    [
        # Programs, also on other machines and in containers, with addresses and local names.
        {"Host": "127.0.0.1:8000"},
        {"Host": "[fe80::1]"},
        {"Host": "worker-1:8000"},
        {"Host": "Host.Containers.Internal"},
        {"Host": "demo.localhost:8000"},
        # An HTTP/1.0 probe. Browsers always send Host.
        {},
        # A browser: a typed address, and this server's own page.
        {"Host": HERE, "Sec-Fetch-Site": "none"},
        {"Host": HERE, "Sec-Fetch-Site": "same-origin", "Origin": f"http://{HERE}"},
        {"Host": "[::1]:80", "Origin": "http://[::1]:80"},
    ],
)
def test_programs_and_the_servers_own_page_are_answered(headers: dict[str, str]) -> None:
    assert find_page_refusal(headers) is None
    assert find_page_refusal(headers, ALLOWED) is None


@pytest.mark.parametrize(
    "host",
    [
        # A name that the owner of a page has pointed to this machine.
        "evil.example",
        "127.0.0.1.evil.example:8000",
        "notlocalhost.internal.example",
        "[::1].evil.example",
        "[::1",
        # Any machine in the same network may claim this name (mDNS).
        "evil.local:8000",
        "",
        ":8000",
        # These reach this machine, and browsers send no Sec-Fetch-Site to them.
        "0.0.0.0:8000",
        "[::]:8000",
        "[::ffff:7f00:1]:8000",
    ],
)
def test_names_that_may_belong_to_another_site_are_refused(host: str) -> None:
    # Under such a name, the server and the page have the same origin for the browser.
    for page in ({}, {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{host}"}):
        for allowed in ((), ALLOWED):
            assert find_page_refusal({"Host": host, **page}, allowed) is PageRefusal.FOREIGN_HOST


@pytest.mark.parametrize(
    "headers",
    [
        # POSTs of a page, also as an old browser sends them.
        {"Host": HERE, "Origin": EVIL},
        {"Host": HERE, "Origin": "http://localhost:3000"},
        {"Host": HERE, "Origin": "null"},
        {"Host": HERE, "Origin": ""},
        {"Origin": EVIL},
        # Images, scripts, links and frames of a page: a GET has no Origin.
        {"Host": HERE, "Sec-Fetch-Site": "cross-site"},
        {"Host": HERE, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_web_pages_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    assert find_page_refusal(headers) is PageRefusal.FOREIGN_PAGE
    assert find_page_refusal(headers, ALLOWED) is PageRefusal.FOREIGN_PAGE


@pytest.mark.parametrize(
    ("host", "origin", "site", "refusal"),
    [
        (HERE, CHAT, "cross-site", None),
        # A browser doesn't send the origin of a page that shows an image.
        (HERE, None, "cross-site", PageRefusal.FOREIGN_PAGE),
        (HERE, f"{CHAT}.evil.example", "cross-site", PageRefusal.FOREIGN_PAGE),
        (HERE, "http://chat.example.com", "cross-site", PageRefusal.FOREIGN_PAGE),
        ("evil.example", CHAT, "same-origin", PageRefusal.FOREIGN_HOST),
        # A reverse proxy of this machine passes on the name by which it was called.
        ("worker.example.com", None, None, None),
        ("Worker.example.com:80", WORKER, "same-origin", None),
        ("worker.example.com", CHAT, "cross-site", None),
        ("worker.example.com", EVIL, "cross-site", PageRefusal.FOREIGN_PAGE),
        ("evil.worker.example.com", None, None, PageRefusal.FOREIGN_HOST),
        ("example.com", None, None, PageRefusal.FOREIGN_HOST),
    ],
)
def test_only_pages_of_allowed_origins_may_call_also_under_their_own_names(
    host: str, origin: str | None, site: str | None, refusal: PageRefusal | None
) -> None:
    sent = {"host": host, "origin": origin, "sec-fetch-site": site}
    headers = Headers({name: value for name, value in sent.items() if value is not None})
    assert find_page_refusal(headers, (CHAT, WORKER)) is refusal
