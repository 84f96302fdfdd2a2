"""Shows images to a model that sees: as data, and from a host that plays the internet."""

import http.server
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from aiohttp.abc import AbstractResolver
from model.scripts.shared import raw, report
from support.engine.scripted import failure
from support.internet import Names
from support.media import data_url, image

from worker.media import Limits, Media
from worker.media.fetcher import Fetcher
from worker.offline import LLM

COLOURS = ("red", "blue")
TOKENS = {"max_tokens": 5, "temperature": 0}
HOST = "127.0.0.9"


class Images(http.server.BaseHTTPRequestHandler):
    """Answers /red with a red image."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.end_headers()
        self.wfile.write(image(colour=self.path.removeprefix("/")))

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def listen(address: str) -> int:
    server = http.server.ThreadingHTTPServer((address, 0), Images)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def chat(url: str, **part: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}, **part}]
    return {"messages": [{"role": "user", "content": parts}]}


def anthropic(url: str) -> dict[str, Any]:
    source: dict[str, Any] = {"type": "url", "url": url}
    if url.startswith("data:"):
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    parts = [{"type": "image", "source": source}]
    return {"messages": [{"role": "user", "content": parts}], **TOKENS}


def response(url: str) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": url, "detail": "auto"}]
    return {
        "input": [{"type": "message", "role": "user", "content": parts}],
        "max_output_tokens": 5,
        "temperature": 0,
    }


def route(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


# The jobs that show the image of a URL, and what in their answers depends on it.
JOBS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[Any], Any]]] = {
    "raw": (
        lambda url: {**chat(url), "sampling_params": TOKENS},
        lambda answer: answer["choices"][0]["tokens"],
    ),
    "chat": (
        lambda url: route("/v1/chat/completions", {**chat(url), **TOKENS}),
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "responses": (
        lambda url: route("/v1/responses", response(url)),
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
    "messages": (
        lambda url: route("/v1/messages", anthropic(url)),
        lambda answer: answer["content"][0]["text"],
    ),
    "tokenize": (lambda url: route("/tokenize", chat(url)), lambda answer: answer["count"]),
}


def refusals(llm: Any, port: int) -> dict[str, Any]:
    """Return the errors with which attacks are refused, on both paths."""
    image_data = data_url()
    attacks = {
        "inside": chat(f"http://127.0.0.1:{port}/red"),
        "file": chat("file:///etc/hostname"),
        "uuid": chat(image_data, uuid="invoice-1"),
        "uuid alone": chat(image_data, image_url=None, uuid="invoice-1"),
        "tensor": chat(image_data, image_embeds="AAAA"),
        "sound": chat(image_data, audio_url={"url": f"http://127.0.0.1:{port}/red"}),
        "kwargs": {**chat(image_data), "chat_template_kwargs": {"mm_processor_kwargs": {}}},
    }
    errors = {}
    for name, body in attacks.items():
        errors[f"raw {name}"] = failure(raw(llm, body))
        errors[f"chat {name}"] = failure(raw(llm, route("/v1/chat/completions", {**body})))
    (whole,) = raw(llm, {"messages_list": [attacks["inside"]["messages"]]})
    return {**errors, "list inside": whole["outputs"][0]["error"]}


def main(model: str) -> None:
    port, inside = listen(HOST), listen("127.0.0.1")

    def names() -> AbstractResolver:
        return Names({"host.example": [[HOST]]})

    with LLM(model, max_model_len=512) as llm:
        server = llm._engine.generation._server
        refused = refusals(llm, inside)
        fetcher = Fetcher(resolver=names, allows=lambda address: address == HOST)
        server.media = Media(Limits(), fetcher, server.media._kinds)
        answers: dict[str, Any] = {}
        for name, (job, part) in JOBS.items():
            for colour in COLOURS:
                urls = data_url(colour=colour), f"http://host.example:{port}/{colour}"
                whole = [raw(llm, job(url))[0] for url in urls]
                answers[f"{name} {colour}"] = [
                    part(one) if "error" not in one or one["error"] is None else one
                    for one in whole
                ]
        kinds = sorted(server.media._kinds)
    report(answers=answers, refused=refused, asked=Images.asked, kinds=kinds)


if __name__ == "__main__":
    main(sys.argv[1])
