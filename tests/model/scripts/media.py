"""Sends images to a vision model, as data and from a stand-in for a host on the internet."""

import base64
import http.server
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from aiohttp.abc import AbstractResolver
from model.scripts.shared import collect_failures, report, run_job
from support.engine.scripted import CHAT, failure
from support.media import data_url, image
from support.network import TableResolver

from worker.media.contents import MediaLimits
from worker.media.fetcher import WebFetcher
from worker.media.loader import MediaLoader
from worker.offline import LLM

TOKENS = {"max_tokens": 5, "temperature": 0}
HOST = "127.0.0.9"


class Images(http.server.BaseHTTPRequestHandler):
    requested_paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requested_paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.end_headers()
        self.wfile.write(image(colour=self.path.removeprefix("/")))

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def listen(address: str) -> int:
    server = http.server.ThreadingHTTPServer((address, 0), Images)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def chat(url: str, **part: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}, **part}]
    return {"messages": [{"role": "user", "content": parts}]}


def response(url: str) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": url, "detail": "auto"}]
    return {
        "input": [{"type": "message", "role": "user", "content": parts}],
        "max_output_tokens": 5,
        "temperature": 0,
    }


def route(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


# Functions that create a job with the image of a URL and that extract the answer of the job.
JOBS: list[tuple[Callable[[str], dict[str, Any]], Callable[[Any], Any]]] = [
    (
        lambda url: {**chat(url), "sampling_params": TOKENS},
        lambda answer: answer["choices"][0]["tokens"],
    ),
    (
        lambda url: route(CHAT, {**chat(url), **TOKENS}),
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    (
        lambda url: route("/v1/responses", response(url)),
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
]


def attacks_are_refused(llm: LLM, port: int) -> None:
    url = f"http://127.0.0.1:{port}/red"
    loopback_image, image_data = chat(url), data_url()
    kwargs = {**chat(image_data), "chat_template_kwargs": {"mm_processor_kwargs": {"size": 1}}}
    no_address = "its host has no address on the public internet"
    attacks: list[tuple[dict[str, Any], str]] = [
        (loopback_image, no_address),
        (route(CHAT, {**loopback_image}), no_address),
        (route(CHAT, chat(image_data, uuid="invoice-1")), "uuid: not allowed in a request"),
        (
            route(CHAT, chat(image_data, audio_url={"url": url})),
            "this model accepts text and image",
        ),
        (kwargs, "mm_processor_kwargs: not allowed in a request"),
    ]
    errors = [(failure(run_job(llm, attack)), message) for attack, message in attacks]
    (listed,) = run_job(llm, {"messages_list": [loopback_image["messages"]]})
    for error, message in (*errors, (listed["outputs"][0]["error"], no_address)):
        assert (error["code"], message in error["message"]) == (400, True), error


def a_fetched_image_has_the_answer_of_the_same_image_as_data(llm: LLM, port: int) -> None:
    server = llm._engine.generation._server
    assert server.media._kinds == {"image"}

    def names() -> AbstractResolver:
        return TableResolver({"host.example": [[HOST]]})

    fetcher = WebFetcher(create_resolver=names, is_allowed=lambda address: address == HOST)
    server.media = MediaLoader(MediaLimits(), fetcher, server.media._kinds)
    for job, extract in JOBS:
        seen = []
        for colour in ("red", "blue"):
            urls = data_url(colour=colour), f"http://host.example:{port}/{colour}"
            as_data, fetched = (extract(run_job(llm, job(url))[0]) for url in urls)
            assert as_data == fetched
            seen.append(fetched)
        red, blue = seen
        assert red != blue
    # The server received requests only for the images of jobs.
    assert Images.requested_paths == ["/red", "/blue"] * len(JOBS)


def every_form_of_an_image_has_the_same_answer(llm: LLM) -> None:
    url = data_url(colour="blue")
    lines = base64.encodebytes(base64.b64decode(url.partition(",")[2])).decode()
    source = {"type": "base64", "media_type": "image/png", "data": lines}
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": url},
        {"type": "image", "source": source},
        {"type": "image_url", "image_url": f"data:image/png;base64,{lines}"},
    ]
    (as_raw, raw_text), (as_chat, chat_text), _ = JOBS
    tokens = raw_text(run_job(llm, as_raw(url))[0])
    text = chat_text(run_job(llm, as_chat(url))[0])
    for part in parts:
        body = {"messages": [{"role": "user", "content": [part]}]}
        assert raw_text(run_job(llm, {**body, "sampling_params": TOKENS})[0]) == tokens
        assert chat_text(run_job(llm, route(CHAT, {**body, **TOKENS}))[0]) == text
        (message,) = run_job(llm, route("/v1/messages", {**body, **TOKENS}))
        assert message["content"][0]["text"] == text


def main(model: str) -> None:
    with LLM(model, max_model_len=512) as llm:
        failed = collect_failures(
            partial(attacks_are_refused, llm, listen("127.0.0.1")),
            partial(every_form_of_an_image_has_the_same_answer, llm),
            partial(a_fetched_image_has_the_answer_of_the_same_image_as_data, llm, listen(HOST)),
        )
    report(failed=failed)


if __name__ == "__main__":
    main(sys.argv[1])
