"""Attempts to make the worker fetch from places that only it can reach.

A canary listens on the loopback interface, and a file lies on the disk: nothing may ask the one, or
read the other, whatever a request's URLs are.
"""

import base64
import urllib.parse
from pathlib import Path
from typing import Any

import aiohttp.test_utils
import aiohttp.web
import pytest
from support.internet import Canary, Names
from support.media import as_url, image
from support.tables.hostile_urls import DRAWING, HOSTS, NAMES, PLAYLIST, SCRIPT, URLS

from worker.errors import InvalidInput
from worker.media.addresses import is_public
from worker.media.contents import Limits
from worker.media.fetcher import Fetcher
from worker.media.loader import Media

CHAT = "/v1/chat/completions"
SECRET = "the secret of the canary file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "canary.png"
    file.write_text(SECRET)
    return file


def media(names: Names) -> Media:
    fetcher = Fetcher(resolver=lambda: names)
    return Media(Limits(seconds=5), fetcher, ["image", "video", "audio"])


def filled(url: str, canary: Canary, secret: Path) -> str:
    def encoded(text: str) -> str:
        text = text.replace("{port}", str(canary.port)).replace("{file}", str(secret))
        return base64.b64encode(text.encode()).decode()

    for name, text in (("playlist", PLAYLIST), ("drawing", DRAWING), ("script", SCRIPT)):
        url = url.replace("{" + name + "}", encoded(text))
    url = url.replace("{link}", encoded("http://127.0.0.1:{port}/"))
    return url.replace("{port}", str(canary.port)).replace("{file}", str(secret))


async def refused(media: Media, url: str) -> None:
    """Assert that a URL is refused, as every kind of medium, without a word about a network."""
    for kind in ("image", "video", "audio"):
        part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
        body = {"messages": [{"role": "user", "content": [part]}]}
        with pytest.raises(InvalidInput) as caught:
            await media.inlined(body, CHAT)
        message = caught.value.message
        assert message.startswith(f"messages.0.content.0.{kind}_url.url: ")
        for inside in ("127.0.0.1", "169.254", "hunter2", SECRET, "Errno", "canary"):
            assert inside not in message


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", HOSTS, ids=repr)
async def test_no_spelling_of_a_host_reaches_this_machine(
    host: str, scheme: str, canary: Canary
) -> None:
    names = Names(NAMES)
    await refused(media(names), f"{scheme}://{host}:{canary.port}/a.png")
    assert not canary.hits


@pytest.mark.parametrize("url", URLS, ids=repr)
async def test_no_other_kind_of_url_reaches_this_machine(
    url: str, canary: Canary, secret: Path
) -> None:
    await refused(media(Names(NAMES)), filled(url, canary, secret))
    assert not canary.hits


async def test_a_name_that_changes_its_address_is_looked_up_once(canary: Canary) -> None:
    names = Names({"rebinding.example": [["127.0.0.9"], ["127.0.0.1"]]})
    # 127.0.0.9 plays a public address, at which nobody listens.
    fetcher = Fetcher(resolver=lambda: names, allows=lambda address: address == "127.0.0.9")
    url = f"http://rebinding.example:{canary.port}/"
    await refused(Media(Limits(seconds=5), fetcher, ["image", "video", "audio"]), url)
    assert not canary.hits
    # Each of three requests looked once; the second and third got what is refused.
    assert names.asked == ["rebinding.example"] * 3


async def test_the_address_of_the_socket_is_checked_even_if_a_resolver_lies(
    canary: Canary,
) -> None:
    seen: list[str] = []

    def allows(address: str) -> bool:
        seen.append(address)
        # Lets the resolver's answer pass, and then the connection fail.
        return len(seen) == 1 or is_public(address)

    fetcher = Fetcher(resolver=lambda: Names(NAMES), allows=allows)
    part = {"type": "image_url", "image_url": f"http://inside.example:{canary.port}/"}
    with pytest.raises(InvalidInput, match="no address on the public internet"):
        await Media(Limits(), fetcher, ["image"]).inlined(
            {"messages": [{"role": "user", "content": [part]}]}, CHAT
        )
    assert seen == ["127.0.0.1", "127.0.0.1"]
    assert not canary.hits


async def test_a_name_with_one_address_inside_is_refused_whole(serve: Any) -> None:
    names = Names({"mixed.example": [["127.0.0.9", "127.0.0.1"]]})
    fetcher = Fetcher(resolver=lambda: names, allows=lambda address: address == "127.0.0.9")
    url = serve().replace("host.example", "mixed.example")
    await refused(Media(Limits(seconds=5), fetcher, ["image", "video", "audio"]), url)


async def test_neither_a_proxy_nor_stored_passwords_of_the_environment_are_used(
    canary: Canary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine public.example login user password word\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://proxy.example:{canary.port}")
    names = Names({**NAMES, "public.example": [["127.0.0.9"]], "proxy.example": [["127.0.0.1"]]})
    fetcher = Fetcher(resolver=lambda: names, allows=lambda address: address == "127.0.0.9")
    await refused(
        Media(Limits(seconds=5), fetcher, ["image", "video", "audio"]), "http://public.example/a"
    )
    assert not canary.hits
    assert set(names.asked) == {"public.example"}


def _everywhere(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a body for each place from which vLLM would fetch."""
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    source = {"type": "image", "source": {"type": "url", "url": url}}
    return [
        (CHAT, {"messages": chat}),
        (CHAT, {"messages": [{"role": "tool", "content": chat[0]["content"]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"image_url": url}]}]}),
        ("/tokenize", {"messages": chat}),
        ("/pooling", {"messages": chat}),
        ("/v1/embeddings", {"messages": chat}),
        ("/v1/embeddings", {"messages": [chat]}),
        ("/v1/embeddings", {"input": chat}),
        ("/v1/embeddings", {"input": [chat]}),
        ("/score", {"queries": "a", "documents": {"content": chat[0]["content"]}}),
        ("/score", {"text_1": {"content": chat[0]["content"]}, "text_2": "a"}),
        ("/rerank", {"query": "a", "documents": [{"content": chat[0]["content"]}]}),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        ),
        (
            "/v1/responses",
            {"input": [{"output": [{"type": "input_image", "image_url": url}]}]},
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": [source]}]}),
        (
            "/v1/messages",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "content": [source]}]}
                ]
            },
        ),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [source]}]}),
    ]


@pytest.mark.parametrize("index", range(len(_everywhere(""))))
async def test_a_url_is_refused_wherever_it_stands(index: int, canary: Canary) -> None:
    route, body = _everywhere(f"http://127.0.0.1:{canary.port}/")[index]
    with pytest.raises(InvalidInput, match="no address on the public internet"):
        await media(Names(NAMES)).inlined(body, route)
    assert not canary.hits


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://inside.example:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://0x7f.1:{port}/",
        "http://user:hunter2@127.0.0.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata.google.internal/",
        "file://{file}",
        "gopher://127.0.0.1:{port}/",
        "http://127.0.0.1:{port}\\@host.example/",
        "data:image/png;base64,{pixel}",
        "/again",
        "",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_leads_nowhere_that_a_url_may_not(
    location: str, status: int, canary: Canary, secret: Path
) -> None:
    pixel = as_url(image(1, 1)).rpartition(",")[2]
    location = filled(location, canary, secret).replace("{pixel}", urllib.parse.quote(pixel))

    async def redirect(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(status=status, headers={"Location": location})

    app = aiohttp.web.Application()
    app.router.add_get("/{tail:.*}", redirect)
    # 127.0.0.9 plays the internet.
    async with aiohttp.test_utils.TestServer(app, host="127.0.0.9") as server:
        names = Names({**NAMES, "host.example": [["127.0.0.9"]]})
        fetcher = Fetcher(resolver=lambda: names, allows=lambda address: address == "127.0.0.9")
        own = Media(Limits(seconds=5), fetcher, ["image", "video", "audio"])
        await refused(own, f"http://host.example:{server.port}/a.png")
    assert not canary.hits
