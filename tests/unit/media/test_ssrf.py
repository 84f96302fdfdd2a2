"""Attempts to make the worker fetch from addresses that only the worker can reach.

A server listens on the loopback interface, and a file is on the disk: no URL in a request may
reach the server or read the file. Some tests treat 127.0.0.9 as a public address.
"""

import base64
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.media import KINDS, MESSAGES, chat_body, image, to_data_url
from support.network import LocalServer, TableResolver
from support.processes.background import HUNG_S
from support.tables.hostile_urls import DRAWING, HOSTS, NAMES, PLAYLIST, SCRIPT, URLS

from worker.errors import InvalidInput
from worker.media.contents import MediaLimits
from worker.media.fetcher import WebFetcher, is_public_address
from worker.media.loader import MediaLoader

SECRET = "the secret of the canary file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "canary.png"
    file.write_text(SECRET)
    return file


def make_loader(names: TableResolver, is_allowed: Any = is_public_address) -> MediaLoader:
    return MediaLoader(
        MediaLimits(timeout_s=HUNG_S),
        WebFetcher(create_resolver=lambda: names, is_allowed=is_allowed),
        KINDS,
    )


def is_public_test_address(address: str) -> bool:
    return address == "127.0.0.9"


def fill_placeholders(url: str, local_server: LocalServer, secret: Path) -> str:
    def encode(text: str) -> str:
        text = text.replace("{port}", str(local_server.port)).replace("{file}", str(secret))
        return base64.b64encode(text.encode()).decode()

    for name, text in (("playlist", PLAYLIST), ("drawing", DRAWING), ("script", SCRIPT)):
        url = url.replace("{" + name + "}", encode(text))
    url = url.replace("{link}", encode("http://127.0.0.1:{port}/"))
    return url.replace("{port}", str(local_server.port)).replace("{file}", str(secret))


async def assert_refused(loader: MediaLoader, url: str) -> None:
    """Assert that a URL is refused as every kind of medium, with no detail of the network."""
    for kind in KINDS:
        with pytest.raises(InvalidInput) as caught:
            await loader.inline_media(chat_body(url, kind=kind), MESSAGES)
        message = caught.value.message
        assert message.startswith(f"messages.0.content.0.{kind}_url.url: ")
        for detail in ("127.0.0.1", "169.254", "hunter2", SECRET, "Errno", "canary"):
            assert detail not in message


@pytest.mark.parametrize(
    ("scheme", "host"),
    [*(("http", host) for host in HOSTS), ("https", "127.0.0.1"), ("https", "inside.example")],
)
async def test_no_host_reaches_this_machine(
    host: str, scheme: str, local_server: LocalServer
) -> None:
    await assert_refused(
        make_loader(TableResolver(NAMES)), f"{scheme}://{host}:{local_server.port}/a.png"
    )
    assert not local_server.hits


@pytest.mark.parametrize("url", URLS, ids=repr)
async def test_no_other_url_reaches_this_machine(
    url: str, local_server: LocalServer, secret: Path
) -> None:
    await assert_refused(
        make_loader(TableResolver(NAMES)), fill_placeholders(url, local_server, secret)
    )
    assert not local_server.hits


async def test_a_name_that_changes_its_address_is_resolved_once_per_request(
    local_server: LocalServer,
) -> None:
    # No server listens at the first address.
    names = TableResolver({"rebinding.example": [["127.0.0.9"], ["127.0.0.1"]]})
    await assert_refused(
        make_loader(names, is_public_test_address), f"http://rebinding.example:{local_server.port}/"
    )
    assert not local_server.hits
    # Each of three requests resolved the name once; the second and third got the refused address.
    assert names.queried_names == ["rebinding.example"] * 3


async def test_the_address_of_the_socket_is_checked_in_addition_to_the_resolved_address(
    local_server: LocalServer,
) -> None:
    addresses: list[str] = []

    def is_allowed(address: str) -> bool:
        addresses.append(address)
        # Accepts the address from the resolver, and then refuses the address of the socket.
        return len(addresses) == 1 or is_public_address(address)

    loader = make_loader(TableResolver(NAMES), is_allowed)
    with pytest.raises(InvalidInput, match="no address on the public internet"):
        await loader.inline_media(
            chat_body(f"http://inside.example:{local_server.port}/"), MESSAGES
        )
    assert addresses == ["127.0.0.1", "127.0.0.1"]
    assert not local_server.hits


async def test_a_name_with_one_private_address_is_refused(media_host: Any) -> None:
    names = TableResolver({"mixed.example": [["127.0.0.9", "127.0.0.1"]]})
    url = media_host().replace("host.example", "mixed.example")
    await assert_refused(make_loader(names, is_public_test_address), url)


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    local_server: LocalServer, media_host: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[str | None] = []

    async def respond(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(status=404)

    netrc = tmp_path / "netrc"
    netrc.write_text("machine public.example login user password word\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://proxy.example:{local_server.port}")
    names = TableResolver({"public.example": [["127.0.0.9"]], "proxy.example": [["127.0.0.1"]]})
    url = media_host.serve(respond).replace("host.example", "public.example")
    await assert_refused(make_loader(names, is_public_test_address), url)
    assert (local_server.hits, set(names.queried_names), set(sent)) == (
        [],
        {"public.example"},
        {None},
    )


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
async def test_a_redirect_has_the_same_restrictions_as_a_url(
    location: str, status: int, local_server: LocalServer, secret: Path, media_host: Any
) -> None:
    pixel = to_data_url(image(1, 1)).rpartition(",")[2]
    location = fill_placeholders(location, local_server, secret).replace(
        "{pixel}", urllib.parse.quote(pixel)
    )
    names = TableResolver({**NAMES, "host.example": [["127.0.0.9"]]})
    await assert_refused(
        make_loader(names, is_public_test_address), media_host.redirect(location, status)
    )
    assert not local_server.hits
