"""Tests of the media types that vLLM reads, and of disabling vLLM's own fetcher."""

import asyncio
import http.server
import socket
import sys
import threading
from argparse import Namespace
from pathlib import Path

import pytest
from support.tables.attacks import SESSION, SESSION_PORT
from vllm.multimodal.media import ImageMediaIO, MediaConnector, VideoMediaIO
from vllm.renderers.hf import parse_chat_messages

from worker.engine.arguments import EngineArguments
from worker.engine.run.requests.media import ENVIRONMENT, UNREACHABLE_HOST, disable_media_fetching
from worker.media.walker import DENIED_PART_KEYS, URL_KEYS, URL_KINDS
from worker.settings.environment import set_unset_variables

# vLLM 0.31, 0.32 and 0.33 have the map in different modules, next to this function.
MM_PARSER_MAP = sys.modules[parse_chat_messages.__module__].MM_PARSER_MAP

# Types of parts without media.
PARTS_WITHOUT_MEDIA = {"text", "thinking", "input_text", "output_text", "refusal", "tool_reference"}


def arguments(**options: object) -> EngineArguments:
    unset = {"allowed_media_domains": None, "allowed_local_media_path": ""}
    return EngineArguments(vllm_args=Namespace(**unset | options), model_name="org/name")


def test_the_worker_knows_every_type_of_part_that_vllm_reads() -> None:
    known = (
        PARTS_WITHOUT_MEDIA
        | DENIED_PART_KEYS.keys()
        | URL_KINDS.keys()
        | URL_KEYS.keys()
        | {"input_audio"}
    )
    assert MM_PARSER_MAP.keys() <= known


def test_vllm_may_fetch_only_from_hosts_that_the_operator_names() -> None:
    disabled = disable_media_fetching(arguments(allowed_local_media_path="/"), None).vllm_args
    assert (disabled.allowed_media_domains, disabled.allowed_local_media_path) == (
        [UNREACHABLE_HOST],
        "",
    )
    # Hosts that the operator has named remain allowed.
    named = disable_media_fetching(arguments(allowed_media_domains=["example.com"]), None).vllm_args
    assert named.allowed_media_domains == ["example.com"]


def test_vllms_fetcher_sends_no_request_while_fetching_is_disabled() -> None:
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connector = MediaConnector(allowed_media_domains=[UNREACHABLE_HOST])
        for url in (f"http://127.0.0.1:{server.server_port}/a", "file:///etc/hostname"):
            with pytest.raises((ValueError, RuntimeError)):
                connector.load_from_url(url, ImageMediaIO())
            with pytest.raises((ValueError, RuntimeError)):
                asyncio.run(connector.load_from_url_async(url, ImageMediaIO()))
        server.shutdown()
    assert not paths


def is_open(port: int) -> bool:
    """Return whether a UDP port of this machine is bound."""
    return f":{port:04X} " in Path("/proc/net/udp").read_text()


def test_a_session_description_sent_as_a_video_opens_no_port() -> None:
    set_unset_variables(ENVIRONMENT)
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
