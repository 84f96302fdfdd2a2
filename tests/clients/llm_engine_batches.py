"""Scale LLM Engine's client: files and batches.

`python -m clients.llm_engine_batches ROOT FOLDER`: of the volume, and on it for what is written.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from clients.llm_engine_refusals import refused
from llmengine import Completion, File
from llmengine.data_types import CreateBatchCompletionsModelConfig as ModelConfig
from llmengine.data_types import CreateBatchCompletionsV1RequestContent as Content
from llmengine.data_types import FilteredChatCompletionV2Request as Chat
from llmengine.data_types import FilteredCompletionV2Request as Prompt

PROMPTS = ["Once upon a time", "What does this worker do?", "Once upon a time there was"]
SHARED: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0.0}
MODEL = ModelConfig(model="demo", num_shards=1, labels={"team": "a"})
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["q", None]}}, "required": ["a"]}
ENDED_S = 120


def ended(job_id: str) -> dict[str, Any]:
    """Poll a job, as callers do, until it has ended."""
    until = time.monotonic() + ENDED_S
    while time.monotonic() < until:
        job: dict[str, Any] = Completion.get_batch_completion(job_id)["job"]
        if job["status"] not in {"queued", "running"}:
            return job
        time.sleep(0.2)
    sys.exit(f"The job {job_id} does not end")


def chat(text: str, **keys: Any) -> Chat:
    return Chat(messages=[{"role": "user", "content": text}], temperature=0, **keys)


def held_to_a_schema() -> Chat:
    """Return a chat with a schema, which the client sends under a name of its own."""
    schema = {"name": "a", "schema": {**SCHEMA, "additionalProperties": False}}
    return chat("Hi", max_tokens=60, response_format={"type": "json_schema", "json_schema": schema})


def files(directory: Path, folder: str) -> dict[str, Any]:
    """Upload a v1 input; return what the client knows of it, and then of its end."""
    written = directory / "upload.json"
    written.write_text(json.dumps({"prompts": PROMPTS, **SHARED}))
    with written.open() as opened:
        uploaded = File.upload(opened).id
    job = v1(f"{folder}/v1-file.json", input_data_path=uploaded)
    return {
        "id": uploaded,
        "job": job,
        "get": File.get(uploaded).dict(),
        "listed": [file.dict() for file in File.list().files],
        "content": File.download(uploaded).dict(),
        "deleted": File.delete(uploaded).deleted,
        "gone": refused(lambda: File.get(uploaded)),
    }


def v1(output: str, **keys: Any) -> dict[str, Any]:
    return ended(Completion.batch_create(output, MODEL, **keys).job_id)


def v2(output: str, **keys: Any) -> dict[str, Any]:
    created = Completion.batch_create(output, MODEL, use_v2=True, priority="3", **keys)
    return {"created": json.loads(created.json()), "ended": ended(created.job_id)}


def cancelled(folder: str) -> dict[str, Any]:
    """Cancel a job that would take long."""
    content = [chat("Hi", max_tokens=200, ignore_eos=True)] * 500
    output = f"{folder}/cancelled.json"
    job_id = Completion.batch_create(output, MODEL, content, use_v2=True).job_id
    asked = Completion.cancel_batch_completion(job_id)
    cancel_again = Completion.cancel_batch_completion
    return {"asked": asked, "ended": ended(job_id), "again": cancel_again(job_id)}


def main(root: str, folder: str) -> None:
    directory = Path(root)
    bodies = [Prompt(prompt=text, max_tokens=4, temperature=0).dict() for text in PROMPTS]
    (directory / "inbox").mkdir(exist_ok=True)
    (directory / "inbox" / "bodies.json").write_text(json.dumps(bodies))
    content = Content(prompts=PROMPTS, return_token_log_probs=True, **SHARED)
    chats = [*(chat(text, max_tokens=4) for text in PROMPTS), held_to_a_schema()]
    answers = {
        "prompts": PROMPTS,
        "files": files(directory, folder),
        "v1": v1(f"{folder}/v1.json", content=content),
        "v2 chats": v2(f"{folder}/chats.json", content=chats),
        "v2 completions": v2(f"{folder}/completions.json", input_data_path="inbox/bodies.json"),
        "cancelled": cancelled(folder),
        "refused": refused(lambda: v1(f"{folder}/no.json", input_data_path="https://a.com/in")),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
