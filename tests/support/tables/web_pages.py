"""Who asks a server without a key on this machine: its own programs, or pages in a browser.

The worker (--serve), the emulator and the client's proxy import nothing of each other. This table
holds all three to the same answers.
"""

import asyncio

from support.processes.background import HUNG_S

HERE = "localhost:8000"

# Headers, and whether their request is answered.
ANSWERED: list[tuple[dict[str, str], bool]] = [
    # Programs. Those of other machines and containers come by addresses and local names.
    ({"Host": "127.0.0.1:8000"}, True),
    ({"Host": "localhost"}, True),
    ({"Host": "[::1]:8000"}, True),
    ({"Host": "192.168.1.20:8000"}, True),
    ({"Host": "[fe80::1]"}, True),
    ({"Host": "worker"}, True),
    ({"Host": "worker-1:8000"}, True),
    ({"Host": "host.docker.internal:8000"}, True),
    ({"Host": "Host.Containers.Internal"}, True),
    ({"Host": "demo.localhost:8000"}, True),
    # A probe of HTTP/1.0. No browser leaves it out.
    ({}, True),
    # The browser itself: an address that was typed, and a page of this server's own.
    ({"Host": HERE, "Sec-Fetch-Site": "none"}, True),
    ({"Host": HERE, "Sec-Fetch-Site": "same-origin", "Origin": f"http://{HERE}"}, True),
    # A name that a page's owner has given this machine's address.
    ({"Host": "evil.example:8000"}, False),
    ({"Host": "evil.example", "Sec-Fetch-Site": "same-origin"}, False),
    ({"Host": "localhost.evil.example"}, False),
    ({"Host": "127.0.0.1.evil.example:8000"}, False),
    ({"Host": "notlocalhost.internal.example"}, False),
    ({"Host": "[::1].evil.example"}, False),
    ({"Host": "[::1"}, False),
    # Anybody in the same network may have it (mDNS).
    ({"Host": "evil.local"}, False),
    ({"Host": "evil.local:8000"}, False),
    ({"Host": ""}, False),
    ({"Host": ":8000"}, False),
    # They lead here, and a browser sends no Sec-Fetch-Site to them.
    ({"Host": "0.0.0.0:8000"}, False),
    ({"Host": "[::]:8000"}, False),
    ({"Host": "[::ffff:7f00:1]:8000"}, False),
    ({"Host": "[::ffff:0:0]:8000"}, False),
    # A page's posts, as an old browser sends them, too.
    ({"Host": HERE, "Origin": "https://evil.example"}, False),
    ({"Host": HERE, "Origin": "http://localhost:3000"}, False),
    ({"Host": HERE, "Origin": "null"}, False),
    ({"Host": HERE, "Origin": ""}, False),
    ({"Origin": "https://evil.example"}, False),
    # Its images, scripts, links and frames: a GET has no Origin.
    ({"Host": HERE, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, False),
    ({"Host": HERE, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"}, False),
    ({"Host": HERE, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),
    # Its socket.
    (
        {"Host": HERE, "Origin": "https://evil.example", "Connection": "Upgrade"}
        | {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-Fetch-Site": "cross-site"},
        False,
    ),
]


async def status(url: str, headers: dict[str, str], path: str, method: str = "GET") -> int:
    """Send a request with these headers and no others; return its status."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.{1 if 'Host' in headers else 0}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(HUNG_S):
        answer = await reader.readline()
    writer.close()
    return int(answer.split()[1])
