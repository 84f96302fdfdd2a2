"""LLM Engine's batches in tests: requests that create, run and show them."""

from typing import Any

from support.batches import answered, refused
from worker.app import Worker

V1 = "/v1/llm/batch-completions"
V2 = "/v2/batch-completions"
SHARED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 0}
ASKED: dict[str, Any] = {"model_config": {"model": "demo"}, "output_data_path": "out/a.json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
BODY: dict[str, Any] = {**ASKED, "content": [CHAT]}
REFUSED = "refused"


async def post(worker: Worker, route: str, job_id: str = "job-1", **body: Any) -> Any:
    payload = {"route": route, "method": "POST", "body": body}
    return await answered(worker, payload, job_id)


async def refusal(worker: Worker, route: str, **body: Any) -> dict[str, Any]:
    return await refused(worker, {"route": route, "method": "POST", "body": body})


async def get(worker: Worker, route: str) -> Any:
    return await answered(worker, {"route": route, "method": "GET"})


async def run(worker: Worker, created: dict[str, Any]) -> dict[str, Any]:
    """Run a batch by the job that the answer tells, and return LLM Engine's."""
    await answered(worker, created["run_with"]["input"], "runner")
    job: dict[str, Any] = (await get(worker, f"{V2}/{created['job_id']}"))["job"]
    return job
