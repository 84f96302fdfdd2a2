"""One call of each kind under several bases: `python -m clients.llm_engine_bases BASE...`."""

import io
import json
import sys
from typing import Any

import llmengine
from clients.llm_engine_refusals import refused
from llmengine import Completion, File, Model

STORY = "Once upon a time there was a small worker"
ASKED: dict[str, Any] = {
    "model": "demo",
    "prompt": STORY,
    "max_new_tokens": 8,
    "temperature": 0.0,
}


def called(base: str) -> dict[str, Any]:
    llmengine.api_engine.set_base_path(base)
    # A file's name is what it was opened by; this one has none.
    file = File.upload(io.StringIO("a,b")).id
    return {
        "text": Completion.create(**ASKED).output.text,
        "stream": "".join(event.output.text for event in Completion.create(stream=True, **ASKED)),
        "content": File.download(file).content,
        "listed": file in {one.id for one in File.list().files},
        "deleted": File.delete(file).deleted,
        "models": sorted(model.name for model in Model.list().model_endpoints),
        "model": Model.get("tiny/demo").name,
        "batch": refused(lambda: Completion.get_batch_completion("batch_none"))["error"],
        "unknown": refused(lambda: Completion.create(**{**ASKED, "model": "none"}))["error"],
        "platform": refused(lambda: Model.update(name="tiny/demo"))["error"],
    }


def main(*bases: str) -> None:
    json.dump({base: called(base) for base in bases}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
