"""Attempts to make the worker fetch from places that only it can reach.

A server listens on the loopback interface, and a file lies on the disk: nothing may ask the one, or
read the other, whatever a request's URLs are. 127.0.0.9 plays the internet.
"""

import base64
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.media import KINDS, MESSAGES, as_url, body, image
from support.network import LocalServer, Names
from support.processes.background import HUNG_S
from support.tables.hostile_urls import DRAWING, HOSTS, NAMES, PLAYLIST, SCRIPT, URLS

from worker.errors import InvalidInput
from worker.media import Limits, Media
from worker.media.addresses import is_public
from worker.media.fetcher import Fetcher

SECRET = "the secret of the canary file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "canary.png"
    file.write_text(SECRET)
    return file


def media(names: Names, allows: Any = is_public) -> Media:
    return Media(Limits(seconds=HUNG_S), Fetcher(resolver=lambda: names, allows=allows), KINDS)


def plays_the_internet(address: str) -> bool:
    return address == "127.0.0.9"


def filled(url: str, local: LocalServer, secret: Path) -> str:
    def encoded(text: str) -> str:
        text = text.replace("{port}", str(local.port)).replace("{file}", str(secret))
        return base64.b64encode(text.encode()).decode()

    for name, text in (("playlist", PLAYLIST), ("drawing", DRAWING), ("script", SCRIPT)):
        url = url.replace("{" + name + "}", encoded(text))
    url = url.replace("{link}", encoded("http://127.0.0.1:{port}/"))
    return url.replace("{port}", str(local.port)).replace("{file}", str(secret))


async def refused(own: Media, url: str) -> None:
    """Assert that a URL is refused, as every kind of medium, without a word about a network."""
    for kind in KINDS:
        with pytest.raises(InvalidInput) as caught:
            await own.inlined(body(url, kind=kind), MESSAGES)
        message = caught.value.message
        assert message.startswith(f"messages.0.content.0.{kind}_url.url: ")
        for inside in ("127.0.0.1", "169.254", "hunter2", SECRET, "Errno", "canary"):
            assert inside not in message


@pytest.mark.parametrize(
    ("scheme", "host"),
    [*(("http", host) for host in HOSTS), ("https", "127.0.0.1"), ("https", "inside.example")],
)
async def test_no_host_reaches_this_machine(host: str, scheme: str, local: LocalServer) -> None:
    await refused(media(Names(NAMES)), f"{scheme}://{host}:{local.port}/a.png")
    assert not local.hits


@pytest.mark.parametrize("url", URLS, ids=repr)
async def test_no_other_url_reaches_this_machine(
    url: str, local: LocalServer, secret: Path
) -> None:
    await refused(media(Names(NAMES)), filled(url, local, secret))
    assert not local.hits


async def test_a_name_that_changes_its_address_is_looked_up_once(local: LocalServer) -> None:
    # At the first of its addresses nobody listens.
    names = Names({"rebinding.example": [["127.0.0.9"], ["127.0.0.1"]]})
    await refused(media(names, plays_the_internet), f"http://rebinding.example:{local.port}/")
    assert not local.hits
    # Each of three requests looked once; the second and third got what is refused.
    assert names.asked == ["rebinding.example"] * 3


async def test_the_address_of_the_socket_is_checked_even_if_a_resolver_lies(
    local: LocalServer,
) -> None:
    seen: list[str] = []

    def allows(address: str) -> bool:
        seen.append(address)
        # Lets the resolver's answer pass, and then the connection fail.
        return len(seen) == 1 or is_public(address)

    own = media(Names(NAMES), allows)
    with pytest.raises(InvalidInput, match="no address on the public internet"):
        await own.inlined(body(f"http://inside.example:{local.port}/"), MESSAGES)
    assert seen == ["127.0.0.1", "127.0.0.1"]
    assert not local.hits


async def test_a_name_with_one_address_inside_is_refused_whole(media_host: Any) -> None:
    names = Names({"mixed.example": [["127.0.0.9", "127.0.0.1"]]})
    url = media_host().replace("host.example", "mixed.example")
    await refused(media(names, plays_the_internet), url)


async def test_neither_a_proxy_nor_stored_passwords_of_the_environment_are_used(
    local: LocalServer, media_host: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(status=404)

    netrc = tmp_path / "netrc"
    netrc.write_text("machine public.example login user password word\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://proxy.example:{local.port}")
    names = Names({"public.example": [["127.0.0.9"]], "proxy.example": [["127.0.0.1"]]})
    url = media_host.handled_by(answer).replace("host.example", "public.example")
    await refused(media(names, plays_the_internet), url)
    assert (local.hits, set(names.asked), set(sent)) == ([], {"public.example"}, {None})


LOCATIONS = """
    http://127.0.0.1:{port}/ //127.0.0.1:{port}/ http://localhost:{port}/
    http://inside.example:{port}/ http://[::1]:{port}/ http://[::ffff:127.0.0.1]:{port}/
    http://0x7f.1:{port}/ http://user:hunter2@127.0.0.1:{port}/
    http://169.254.169.254/latest/meta-data/ http://metadata.google.internal/ file://{file}
    gopher://127.0.0.1:{port}/ http://127.0.0.1:{port}\\@host.example/ data:image/png;base64,{pixel}
    /0
"""


@pytest.mark.parametrize(
    ("status", "location"),
    [
        *((302, location) for location in LOCATIONS.split()),
        (302, ""),
        *((status, "http://127.0.0.1:{port}/") for status in (301, 303, 307, 308)),
    ],
)
async def test_a_redirect_leads_nowhere_that_a_url_may_not(
    location: str, status: int, local: LocalServer, secret: Path, media_host: Any
) -> None:
    pixel = as_url(image(1, 1)).rpartition(",")[2]
    location = filled(location, local, secret).replace("{pixel}", urllib.parse.quote(pixel))
    names = Names({**NAMES, "host.example": [["127.0.0.9"]]})
    await refused(media(names, plays_the_internet), media_host.redirect(location, status))
    assert not local.hits
