"""Fine-tunes of LLM Engine's; they are OpenAI's fine-tuning jobs.

The first line of a docstring is what /openapi.json has of the route.
"""

import asyncio
from typing import Any

from worker.dialects.openai import fine_tuning
from worker.errors import Conflict
from worker.fine_tunes.faces import llm_engine
from worker.routes.route import Asked

# Fine-tunes in a list: to tell how far each is takes a look at its files.
MOST_LISTED = 100
ID = "id"


async def create(asked: Asked) -> dict[str, Any]:
    """Fine-tune a model (LLM Engine's)."""
    request = llm_engine.Create.of_body(asked.body).as_openais
    fine_tune, found = await fine_tuning.created(request, asked)
    return {"id": fine_tune.id, "fine_tune_id": fine_tune.id, **found}


async def listed(asked: Asked) -> dict[str, Any]:
    """List the newest fine-tunes (LLM Engine's)."""

    def jobs() -> list[dict[str, Any]]:
        newest = asked.resources.fine_tunes.all()[-MOST_LISTED:]
        return [llm_engine.job(fine_tune) for fine_tune in reversed(newest)]

    return {"jobs": await asyncio.to_thread(jobs)}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a fine-tune (LLM Engine's)."""

    def job() -> dict[str, Any]:
        fine_tune = fine_tuning.found_in(asked, ID)
        fine_tune.settle()
        return llm_engine.job(fine_tune)

    return await asyncio.to_thread(job)


async def cancel(asked: Asked) -> dict[str, Any]:
    """Cancel a fine-tune; one that has ended is none any more, without success (LLM Engine's)."""

    def cancelled() -> bool:
        fine_tune = fine_tuning.found_in(asked, ID)
        try:
            fine_tune.cancel()
        except Conflict:
            return False
        fine_tune.settle()
        return True

    return {"success": await asyncio.to_thread(cancelled)}


async def events(asked: Asked) -> dict[str, Any]:
    """List what a fine-tune has told, the oldest first (LLM Engine's)."""
    told = await asyncio.to_thread(lambda: llm_engine.told(fine_tuning.found_in(asked, ID)))
    return {"events": told}
