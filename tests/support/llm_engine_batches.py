"""LLM Engine's batches in tests: bodies of requests, and how they are run."""

from typing import Any

from support.caller import Caller

V1 = "/v1/llm/batch-completions"
V2 = "/v2/batch-completions"
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
ASKED: dict[str, Any] = {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
BODY: dict[str, Any] = {**ASKED, "content": [CHAT]}


async def run(caller: Caller, created: dict[str, Any]) -> dict[str, Any]:
    """Run a batch by the job that the answer names, and return LLM Engine's."""
    await caller.job(**created["run_with"]["input"])
    job: dict[str, Any] = (await caller.get(f"{V2}/{created['job_id']}"))["job"]
    return job
