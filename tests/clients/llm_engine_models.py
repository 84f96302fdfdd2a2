"""Models with Scale LLM Engine's client: `python -m clients.llm_engine_models ADAPTER`."""

import json
import sys
from typing import Any

from clients.llm_engine_refusals import refused
from llmengine import Completion, Model

STORY = "Once upon a time there was a small worker"


def text(model: str) -> str:
    asked: dict[str, Any] = {"prompt": STORY, "max_new_tokens": 8, "temperature": 0.0}
    written: str = Completion.create(model=model, **asked).output.text
    return written


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


def main(adapter: str) -> None:
    models = [json.loads(model.json()) for model in Model.list().model_endpoints]
    answers: dict[str, Any] = {
        "listed": models,
        "get": [json.loads(Model.get(model["name"]).json()) for model in models],
        "texts": {name: text(name) for name in ("demo", "tiny/demo", "listed", adapter)},
    }
    json.dump({**answers, "deleted": deleted(adapter)}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
