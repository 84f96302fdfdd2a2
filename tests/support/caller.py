"""A caller that sends jobs to a worker with a volume and a scripted engine."""

from itertools import count
from pathlib import Path
from typing import Any

from support.engine.scripted import ScriptedEngine, failure, settings
from worker.app import Worker
from worker.long_work.records import WorkReference


class Caller:
    """Sends jobs, each with its own id, and records the long work that the worker starts.

    Args:
        can_start: Whether long work can be started; None if the worker can't start any.
    """

    def __init__(
        self, engine: ScriptedEngine, root: Path, can_start: bool | None = None, /, **environ: str
    ) -> None:
        self.started_work: list[WorkReference] = []
        self.engine = engine
        self.root = root
        self.settings = settings(
            **{"FILES_PATH": str(root), "RUNPOD_VOLUME_ID": "bucket", **environ}
        )

        async def start(work: WorkReference) -> bool:
            self.started_work.append(work)
            return bool(can_start)

        start_work = None if can_start is None else start
        self.worker = Worker(engine.engines, self.settings, start_work=start_work)
        self._numbers = count(1)

    async def yields(self, payload: Any, job_id: str = "") -> list[Any]:
        job = {"id": job_id or f"job-{next(self._numbers)}", "input": payload}
        return [chunk async for chunk in self.worker.handle(job)]

    async def run_job(self, job_id: str = "", /, **payload: Any) -> Any:
        """Return the only yield of a job."""
        (answer,) = await self.yields(payload, job_id)
        assert list(answer) != ["error"], answer
        return answer

    async def job_error(self, **payload: Any) -> dict[str, Any]:
        return failure(await self.yields(payload))

    async def get(self, route: str) -> Any:
        return await self.run_job(route=route, method="GET")

    async def post(self, route: str, /, **body: Any) -> Any:
        return await self.run_job(route=route, method="POST", body=body)

    async def request_error(self, method: str, route: str, /, **body: Any) -> dict[str, Any]:
        """Return the error of a request that must fail."""
        return await self.job_error(route=route, method=method, body=body)
