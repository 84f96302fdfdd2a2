"""The console's page as all three servers send it, and requests of other sites' web pages."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Mapping

from support.processes.background import HUNG_S


def element(page: str, name: str) -> str:
    """Return the content of the page's only element of this name."""
    (content,) = re.findall(rf"<{name}[^>]*>(.*?)</{name}>", page, re.DOTALL)
    return str(content)


def read_values(page: str) -> dict[str, str]:
    """Return the values that the server has filled in, by name."""
    return dict(re.findall(r'<meta name="(server|endpoint|key)" content="(.*?)">', page))


def check_headers(headers: Mapping[str, str], page: str) -> None:
    """Check that a browser runs the page's own script and nothing else, and stores nothing."""
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for name in ("script", "style"):
        digest = hashlib.sha256(element(page, name).encode()).digest()
        assert policy.pop(f"{name}-src") == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert (policy.pop("connect-src"), policy.pop("img-src")) == ("'self'", "data: blob:")
    assert policy == dict.fromkeys(
        ("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'"
    )
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"


HERE = "localhost:8000"
# Headers, and whether a request with them is answered. Each refused one has another reason.
REQUESTS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Host": HERE, "Sec-Fetch-Site": "same-origin", "Origin": f"http://{HERE}"}, True),
    ({"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"}, False),
    ({"Host": HERE, "Origin": "https://evil.example"}, False),
    ({"Host": HERE, "Sec-Fetch-Site": "cross-site"}, False),
    ({"Host": HERE, "Sec-Fetch-Site": "cross-site", "Upgrade": "websocket"}, False),
]


async def request_status(url: str, headers: dict[str, str], path: str, method: str = "GET") -> int:
    """Send a request with only these headers; return the status of its response."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.{1 if 'Host' in headers else 0}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(HUNG_S):
        answer = await reader.readline()
    writer.close()
    return int(answer.split()[1])
