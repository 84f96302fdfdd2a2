"""Requests without a key to a server on this machine: from programs, and from pages in a browser.

The worker (--serve), the emulator and the client's proxy do not share code. This table checks that
all three treat a request in the same way.
"""

import asyncio
from pathlib import Path

import yaml

from support.processes.background import HUNG_S

HERE = "localhost:8000"
_DATA: dict[str, list[dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text()
)
# Headers, and whether a request with them is answered.
REQUESTS = [(headers, end == "answered") for end, rows in _DATA.items() for headers in rows]


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
