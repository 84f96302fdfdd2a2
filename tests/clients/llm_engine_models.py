"""Models with Scale LLM Engine's client: `python -m clients.llm_engine_models ADAPTER [BASE...]`.

Under each base the models are listed again.
"""

import json
import sys
import urllib.request
from typing import Any

import llmengine
from clients.llm_engine_refusals import refused
from llmengine import Completion, Model

STORY = "Once upon a time there was a small worker"


def text(model: str) -> str:
    asked: dict[str, Any] = {"prompt": STORY, "max_new_tokens": 8, "temperature": 0.0}
    written: str = Completion.create(model=model, **asked).output.text
    return written


def fetched(url: str) -> str:
    """Open a link as anybody can, without a key."""
    with urllib.request.urlopen(url) as answer:
        content: bytes = answer.read()
    return content.hex()


def downloaded(adapter: str) -> dict[str, str]:
    """Return an adapter's files, or the refusal where there are no links."""
    try:
        urls = Model.download(adapter).urls
    except llmengine.errors.BadRequestError as error:
        return {"error": str(error)}
    return {name: fetched(url) for name, url in urls.items()}


def names_under(base: str) -> list[str]:
    llmengine.api_engine.set_base_path(base)
    return sorted(model.name for model in Model.list().model_endpoints)


def deleted(adapter: str) -> dict[str, Any]:
    return {
        "deleted": Model.delete(adapter).dict(),
        "again": refused(lambda: Model.delete(adapter)),
        "get": refused(lambda: Model.get(adapter)),
        "completion": refused(lambda: text(adapter)),
        "download": refused(lambda: Model.download(adapter)),
        "listed": [model.name for model in Model.list().model_endpoints],
        "base": refused(lambda: Model.delete("demo")),
        "base by its other name": refused(lambda: Model.delete("tiny/demo")),
        "of the settings": refused(lambda: Model.delete("listed")),
    }


def main(adapter: str, *bases: str) -> None:
    models = [json.loads(model.json()) for model in Model.list().model_endpoints]
    answers: dict[str, Any] = {
        "listed": models,
        "get": [json.loads(Model.get(model["name"]).json()) for model in models],
        "texts": {name: text(name) for name in ("demo", "tiny/demo", "listed", adapter)},
        "files": downloaded(adapter),
        "format": refused(lambda: Model.download(adapter, download_format="gguf")),
        "deleted": deleted(adapter),
        "bases": [names_under(base) for base in bases],
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
