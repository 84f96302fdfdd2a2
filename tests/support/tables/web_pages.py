"""Requests that show whether a server on this machine refuses web pages of other sites."""

import asyncio

from support.processes.background import HUNG_S

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
