"""Requests to a server on this machine: from programs, and from pages in a browser.

``REQUESTS`` test the rule. ``WIRED`` are enough to test that a server applies it.
"""

import asyncio
from pathlib import Path

import yaml

from llm_worker_console.web_pages import PageRefusal
from support.processes.background import HUNG_S

HERE = "localhost:8000"
_DATA: dict[str, list[dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text()
)
_ENDS = {"answered": None} | {refusal.name.lower(): refusal for refusal in PageRefusal}
# Headers, and why a request with them is refused; None if it is answered.
REQUESTS = [(headers, _ENDS[end]) for end, rows in _DATA.items() for headers in rows]
# Headers, and whether a request with them is answered.
WIRED: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Host": HERE}, True),
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
