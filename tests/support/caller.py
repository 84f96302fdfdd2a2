"""A caller of routes: sends jobs to a worker with a volume, in front of a scripted engine."""

from itertools import count
from pathlib import Path
from typing import Any

from support.engine.scripted import ScriptedEngine, failure, settings
from worker.app import Worker
from worker.long_work.kinds import LongWork


class Caller:
    """Sends jobs, each under an id of its own, and notes which long work the worker starts.

    Args:
        engine: answers.
        root: of the volume.
        starts: whether long work can be started; None: the worker has nothing that starts any.
        environ: further settings.
    """

    def __init__(
        self, engine: ScriptedEngine, root: Path, starts: bool | None = None, /, **environ: str
    ) -> None:
        self.started: list[LongWork] = []
        self.engine = engine
        self.root = root
        self.settings = settings(
            **{"FILES_PATH": str(root), "RUNPOD_VOLUME_ID": "bucket", **environ}
        )

        async def start(work: LongWork) -> bool:
            self.started.append(work)
            return bool(starts)

        start_any = None if starts is None else start
        self.worker = Worker(engine.engines, self.settings, start=start_any)
        self._numbers = count(1)

    async def yields(self, payload: Any, job_id: str = "") -> list[Any]:
        job = {"id": job_id or f"job-{next(self._numbers)}", "input": payload}
        return [chunk async for chunk in self.worker.handle(job)]

    async def job(self, job_id: str = "", /, **payload: Any) -> Any:
        """Return the one yield of a job."""
        (answer,) = await self.yields(payload, job_id)
        assert list(answer) != ["error"], answer
        return answer

    async def refused_job(self, **payload: Any) -> dict[str, Any]:
        return failure(await self.yields(payload))

    async def get(self, route: str) -> Any:
        return await self.job(route=route, method="GET")

    async def post(self, route: str, /, **body: Any) -> Any:
        return await self.job(route=route, method="POST", body=body)

    async def refused(self, method: str, route: str, /, **body: Any) -> dict[str, Any]:
        """Return the error of a request that must fail."""
        return await self.refused_job(route=route, method=method, body=body)
