"""Answers items by jobs that hold lists of them: several at once, again where that may help."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyio import CancelScope
from tqdm import tqdm

from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.jobs import COMPLETED, Job, Run
from llm_worker_client.llm.outputs import EndpointError, PromptError, RequestOutput, output_of
from llm_worker_client.llm.parts import Part, parts_of
from llm_worker_client.llm.prompts import Item
from llm_worker_client.mapping import Refusal, refusal_of
from llm_worker_client.steps import Steps, Unreachable

# Seconds before further tries of what failed for now, at least.
TRIES_AFTER = (1.0, 4.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """What all jobs of a call have in common.

    Args:
        holder: the key of their items: ``prompts``, ``messages_list``.
        shared: their other keys.
        policy: how long the platform lets them run and wait.
        at_once: how many there are at a time.
        pauses: seconds before each further try, at least.
    """

    holder: str
    shared: Mapping[str, Any]
    policy: Mapping[str, Any]
    at_once: int
    pauses: Sequence[float] = TRIES_AFTER

    def payload(self, part: Part, items: Sequence[Item]) -> dict[str, Any]:
        own = [items[index] for index in part.indexes]
        params: Any = [item.params for item in own]
        if all(each is params[0] for each in params):
            params = params[0]
        adapter = {} if part.adapter is None else {"lora": part.adapter}
        asked = {self.holder: [item.asked for item in own], "sampling_params": params}
        return {"input": {**self.shared, **adapter, **asked}, "policy": self.policy}


class Lists:
    """Answers the items of one call, once.

    Args:
        endpoint: closed at the end.
        items: what is asked.
        template: of the jobs.
        use_tqdm: whether a bar shows how far they are.
    """

    def __init__(
        self, endpoint: AsyncEndpoint, items: Sequence[Item], template: JobTemplate, use_tqdm: bool
    ) -> None:
        self._endpoint = endpoint
        self._items = items
        self._template = template
        self._waiting = deque(parts_of(items, template.at_once))
        self._outputs: list[RequestOutput | None] = [None] * len(items)
        # Of items that may be answered in another try.
        self._errors: dict[int, dict[str, Any]] = {}
        # What jobs that run have answered, by the place of their first item.
        self._running: dict[int, int] = {}
        self._bar = tqdm(total=len(items), desc="Processed prompts", disable=not use_tqdm)

    async def answer(self) -> list[RequestOutput]:
        """Return the answers in the order of the items; the first failure cancels all jobs.

        Raises:
            PromptError: an item has failed.
            EndpointError: a job has.
        """
        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(self._template.at_once):
                    lanes.create_task(self._lane())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._bar.close()
            # What cancels the call would otherwise cancel this, too.
            with CancelScope(shield=True):
                await self._endpoint.aclose()
        return [output for output in self._outputs if output is not None]

    async def _lane(self) -> None:
        """Answer one part after the other."""
        while self._waiting:
            # In front: what has no answer at all is not to cost more jobs than it takes to see it.
            self._waiting.extendleft(reversed(await self._rest(self._waiting.popleft())))

    async def _rest(self, part: Part) -> list[Part]:
        """Answer a part; return what is left of it for another try, when it is time for that."""
        refusal = await self._refusal(part)
        left = [index for index in part.indexes if self._outputs[index] is None]
        rest = replace(part, indexes=left, tries=part.tries + 1)
        if refusal is not None and refusal.retry_after_s is None:
            raise EndpointError.of(refusal)
        if refusal is None and not any(index in self._errors for index in left):
            if left == [*part.indexes][:1]:
                message = (
                    f"There is no result of prompt {left[0]}: the platform keeps none above 20 MB"
                )
                raise EndpointError(502, message)
            # Together they may have been too large for it.
            middle = math.ceil(len(left) / 2)
            halves = left[:middle], left[middle:]
            return [replace(rest, indexes=half) for half in halves if half]
        pauses = self._template.pauses
        if part.tries >= len(pauses):
            raise EndpointError.of(refusal) if refusal else self._failure(left)
        retry_after_s = refusal.retry_after_s if refusal else None
        await asyncio.sleep(max(pauses[part.tries], retry_after_s or 0.0))
        return [rest]

    async def _refusal(self, part: Part) -> Refusal | None:
        """Answer a part by one job; return how that failed, if it did.

        Raises:
            PromptError: an item is wrong.
        """
        job, first = Job(), part.indexes[0]
        report: dict[str, Any] = {}

        def steps() -> Steps[None]:
            nonlocal report
            run = Run(job)
            payload = self._template.payload(part, self._items)
            submitted = yield from run.submit(payload, reads=False)
            report = yield from run.wait(submitted, lambda progress: self._notice(first, progress))
            job.over = True

        try:
            await self._endpoint.advance(steps())
        except Refusal as refusal:
            return refusal
        except Unreachable as lost:
            return Refusal(502, f"The platform can't be reached: {lost}", None, 1.0)
        finally:
            self._running.pop(first, None)
            if job.id is not None and not job.over:
                self._endpoint.cancel_soon(job.id)
        self._take(part, report.get("output"))
        return None if report.get("status") == COMPLETED else refusal_of(report)

    def _take(self, part: Part, yields: Any) -> None:
        """Take the results of a job: each of its yields has some, in the order of its items."""
        wrong = []
        for one in yields if isinstance(yields, list) else []:
            if not isinstance(one, dict) or "outputs" not in one:
                raise EndpointError(502, "The endpoint's worker does not know lists of prompts.")
            places = part.indexes[one.get("index", 0) :]
            for index, result in zip(places, one["outputs"], strict=False):
                if error := result.get("error"):
                    self._errors[index] = error
                    wrong += [] if error.get("retryable") else [index]
                else:
                    self._errors.pop(index, None)
                    self._outputs[index] = output_of(self._items[index], result)
        self._show()
        if wrong:
            raise self._failure(wrong)

    def _failure(self, indexes: Sequence[int]) -> PromptError:
        index = min(index for index in indexes if index in self._errors)
        return PromptError(index, self._errors[index], self._outputs)

    def _notice(self, first: int, progress: Any) -> None:
        if isinstance(progress, dict) and isinstance(done := progress.get("done"), int):
            self._running[first] = done
            self._show()

    def _show(self) -> None:
        answered = sum(output is not None for output in self._outputs)
        self._bar.update(answered + sum(self._running.values()) - self._bar.n)
