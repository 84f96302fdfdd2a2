"""What the worker knows of the media that vLLM reads, and how vLLM's own fetcher is closed."""

import asyncio
import http.server
import importlib
import socket
import threading
from argparse import Namespace
from pathlib import Path

import pytest
from support.tables.attacks.media import SESSION, SESSION_PORT
from vllm.multimodal.media import ImageMediaIO, MediaConnector, VideoMediaIO

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Machine
from worker.engine.run.requests.media import EXPORTS, NOWHERE, without_fetcher
from worker.engine.seam.locations import find
from worker.media.walker import DENIED_IN_PARTS, NEEDED, URLS
from worker.settings.environment import export

# It stands beside this exception, whose module has another name before vLLM 0.32.
_RENDERING = importlib.import_module(find("ChatTemplateResolutionError").__module__)
MM_PARSER_MAP = _RENDERING.MM_PARSER_MAP

# Parts that hold no media.
PLAIN = {"text", "thinking", "input_text", "output_text", "refusal", "tool_reference"}


HERE = StartContext(Machine(cpu=True))


def arguments(**options: object) -> EngineArguments:
    unset = {"allowed_media_domains": None, "allowed_local_media_path": ""}
    return EngineArguments(vllm=Namespace(**unset | options), model_name="org/name")


def test_every_type_of_part_that_vllm_reads_is_known() -> None:
    known = PLAIN | DENIED_IN_PARTS.keys() | URLS.keys() | NEEDED.keys() | {"input_audio"}
    assert MM_PARSER_MAP.keys() <= known


def test_vllm_may_fetch_from_nowhere_by_itself() -> None:
    closed = without_fetcher(arguments(allowed_local_media_path="/"), HERE).vllm
    assert (closed.allowed_media_domains, closed.allowed_local_media_path) == ([NOWHERE], "")
    # The hosts that the operator names stay.
    named = without_fetcher(arguments(allowed_media_domains=["example.com"]), HERE).vllm
    assert named.allowed_media_domains == ["example.com"]


def test_a_closed_fetcher_asks_nobody() -> None:
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connector = MediaConnector(allowed_media_domains=[NOWHERE])
        for url in (f"http://127.0.0.1:{server.server_port}/a", "file:///etc/hostname"):
            with pytest.raises((ValueError, RuntimeError)):
                connector.load_from_url(url, ImageMediaIO())
            with pytest.raises((ValueError, RuntimeError)):
                asyncio.run(connector.load_from_url_async(url, ImageMediaIO()))
        server.shutdown()
    assert not asked


def is_open(port: int) -> bool:
    """Return whether a UDP port of this machine is bound."""
    return f":{port:04X} " in Path("/proc/net/udp").read_text()


def test_text_that_vllm_gets_as_a_video_opens_no_port() -> None:
    export(EXPORTS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert is_open(port)
    text = b"\x1a\x45\xdf\xa3" + SESSION.replace(b"%d" % SESSION_PORT, b"%d" % port)
    video, failures = VideoMediaIO(ImageMediaIO()), list[Exception]()

    def load() -> None:
        try:
            video.load_bytes(text)
        except ValueError as error:
            failures.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    was_open = is_open(port)
    while loading.is_alive():
        was_open |= is_open(port)
    assert failures
    assert not was_open
