"""Runs lists of prompts or conversations in concurrent jobs, with retries."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import gt
from typing import Any

from anyio import CancelScope
from tqdm import tqdm

from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.jobs import COMPLETED, Job, JobRun
from llm_worker_client.llm.inputs import Item, encode_json
from llm_worker_client.llm.outputs import EndpointError, PromptError, RequestOutput, create_output
from llm_worker_client.mapping.responses import Refusal, refusal_from_report
from llm_worker_client.steps import PlatformUnreachable, Steps

# Minimum seconds before each retry of a part that failed.
RETRY_DELAYS = (1.0, 4.0, 15.0, 30.0)
MAX_BYTES = 8_000_000
# Limits of a job: bytes of the items (jobs above 10 MB can't be cancelled), JSON values and token
# ids (a worker accepts 100,000 and 1,500,000), bytes of the results (the platform stores 20 MB).
JOB_LIMITS = (MAX_BYTES, 80_000, 1_200_000, 12_000_000)
# Estimated bytes of a result, of each token in it (text and id), and of each candidate token.
RESULT_BYTES, TOKEN_BYTES, CANDIDATE_BYTES = 400, 24, 100
# Tokens of an output if the parameters contain no limit.
DEFAULT_TOKENS = 16
# Bounds for the maximum number of prompts in a job: several workers get jobs, but no tiny ones.
MIN_PROMPTS, MAX_PROMPTS = 50, 500


@dataclass(frozen=True, slots=True)
class ListPart:
    """The items of one job, by their indexes in the call's list."""

    indexes: Sequence[int]
    adapter: str | None  # None if the items use the call's model
    failures: int = 0  # number of failed jobs with these items


def split_items(items: Sequence[Item], jobs: int) -> list[ListPart]:
    """Split items for concurrent jobs, each with one adapter and in the original order."""
    max_prompts = min(MAX_PROMPTS, max(MIN_PROMPTS, math.ceil(len(items) / jobs)))
    sizes = {id(item.params): len(encode_json(item.params, "sampling_params")) for item in items}
    parts: list[ListPart] = []
    for adapter in dict.fromkeys(item.adapter for item in items):
        indexes: list[int] = []
        part_load = [0] * len(JOB_LIMITS)
        for index, item in enumerate(items):
            if item.adapter != adapter:
                continue
            item_load = _estimate_use_of_limits(item, index, sizes[id(item.params)])
            new_load = [*map(sum, zip(part_load, item_load, strict=True))]
            if indexes and (len(indexes) == max_prompts or any(map(gt, new_load, JOB_LIMITS))):
                parts.append(ListPart(indexes, adapter))
                indexes, new_load = [], item_load
            indexes.append(index)
            part_load = new_load
        parts.append(ListPart(indexes, adapter))
    return parts


def _estimate_use_of_limits(item: Item, index: int, params_bytes: int) -> list[int]:
    """Estimate how much of each limit in ``JOB_LIMITS`` an item uses."""
    ids, params = item.token_ids, item.params
    prompt_bytes = len(encode_json(item.content, f"prompt {index}"))
    values = 2 + _count_json_values(params) + (0 if ids else _count_json_values(item.content))

    candidates = _read_count(params, "logprobs", 0 if params.get("return_token_log_probs") else -2)
    token_bytes = TOKEN_BYTES + (2 + candidates) * CANDIDATE_BYTES
    tokens = _read_count(params, "n", 1) * _read_count(params, "max_tokens", DEFAULT_TOKENS)
    prompt_token_bytes = (2 + _read_count(params, "prompt_logprobs", -2)) * CANDIDATE_BYTES
    # Most prompt tokens have at least three characters.
    result_bytes = RESULT_BYTES + tokens * token_bytes + prompt_bytes * prompt_token_bytes // 3
    return [prompt_bytes + params_bytes + 2, values, len(ids or ()), result_bytes]


def _read_count(params: dict[str, Any], name: str, default: int) -> int:
    # A wrong value needs no estimate because the worker rejects it.
    value = params.get(name)
    return value if isinstance(value, int) and value >= 0 else default


def _count_json_values(value: Any) -> int:
    """Return the number of values in a JSON value, including itself."""
    if isinstance(value, dict):
        return 1 + sum(map(_count_json_values, value.values()))
    return 1 + sum(map(_count_json_values, value)) if isinstance(value, list | tuple) else 1


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The common properties of all jobs of one call of ``generate`` or ``chat``."""

    items_key: str  # key for the items in a job's input: `prompts` or `messages_list`
    shared: Mapping[str, Any]  # the rest of each job's input
    policy: Mapping[str, Any]  # `executionTimeout` and `ttl`
    concurrency: int
    retry_delays: Sequence[float] = RETRY_DELAYS  # minimum seconds before each retry

    def payload(self, part: ListPart, items: Sequence[Item]) -> dict[str, Any]:
        part_items = [items[index] for index in part.indexes]
        params: Any = [item.params for item in part_items]
        if all(item_params is params[0] for item_params in params):
            params = params[0]
        adapter = {} if part.adapter is None else {"lora": part.adapter}
        content = {self.items_key: [item.content for item in part_items], "sampling_params": params}
        return {"input": {**self.shared, **adapter, **content}, "policy": self.policy}


class ItemRunner:
    """Runs the prompts or conversations of one call, once; ``run`` closes the endpoint."""

    def __init__(
        self, endpoint: AsyncEndpoint, items: Sequence[Item], template: JobTemplate, use_tqdm: bool
    ) -> None:
        self._endpoint = endpoint
        self._items = items
        self._template = template
        self._parts = deque(split_items(items, template.concurrency))
        self._outputs: list[RequestOutput | None] = [None] * len(items)
        # The last error of each failed item, by index. A successful retry removes the error.
        self._errors: dict[int, dict[str, Any]] = {}
        # Number of finished items in each running job, by the index of the job's first item.
        self._done_counts: dict[int, int] = {}
        self._bar = tqdm(total=len(items), desc="Processed prompts", disable=not use_tqdm)

    async def run(self) -> list[RequestOutput]:
        """Run all items and return their outputs in order.

        The first failure that is not retryable or remains after all retries cancels all jobs.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._template.concurrency):
                    tasks.create_task(self._run_parts())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._bar.close()
            # The cancellation of this call must not cancel the cleanup.
            with CancelScope(shield=True):
                await self._endpoint.aclose()
        return [output for output in self._outputs if output is not None]

    async def _run_parts(self) -> None:
        """Run parts sequentially until the shared queue of parts is empty.

        What has to be sent again becomes the first in the queue, so that a prompt that always fails
        is found early.
        """
        retry_delays = self._template.retry_delays
        while self._parts:
            part = self._parts.popleft()
            refusal = await self._run_job(part)
            unanswered = [index for index in part.indexes if self._outputs[index] is None]
            retry_part = replace(part, indexes=unanswered, failures=part.failures + 1)
            if refusal is not None and refusal.retry_after_s is None:
                raise EndpointError.from_refusal(refusal)

            if refusal is None and not any(index in self._errors for index in unanswered):
                if unanswered == [*part.indexes][:1]:
                    message = f"There is no result for prompt {unanswered[0]}"
                    reason = "the platform stores no result above 20 MB"
                    raise EndpointError(502, f"{message}: {reason}")
                # The missing results may have been too large together, so ask for two parts.
                middle = math.ceil(len(unanswered) / 2)
                halves = unanswered[middle:], unanswered[:middle]
                self._parts.extendleft(replace(retry_part, indexes=half) for half in halves if half)
                continue

            if part.failures >= len(retry_delays):
                if refusal is None:
                    raise self._prompt_error(unanswered)
                raise EndpointError.from_refusal(refusal)
            retry_after_s = refusal.retry_after_s if refusal else None
            await asyncio.sleep(max(retry_delays[part.failures], retry_after_s or 0.0))
            self._parts.appendleft(retry_part)

    async def _run_job(self, part: ListPart) -> Refusal | None:
        """Run a part in one job and store its results; return the job's error, if it failed."""
        job, first_index = Job(), part.indexes[0]
        report: dict[str, Any] = {}

        def steps() -> Steps[None]:
            nonlocal report
            run = JobRun(job)
            payload = self._template.payload(part, self._items)
            submitted = yield from run.submit(payload, is_read_only=False)
            on_progress = partial(self._record_job_progress, first_index)
            report = yield from run.wait_for_end(submitted, on_progress)
            job.is_over = True

        try:
            await self._endpoint.run_steps(steps())
        except Refusal as refusal:
            return refusal
        except PlatformUnreachable as error:
            return Refusal(502, f"The platform can't be reached: {error}", None, 1.0)
        finally:
            self._done_counts.pop(first_index, None)
            if job.id is not None and not job.is_over:
                self._endpoint.cancel_job_soon(job.id)
        self._store_results(part, report.get("output"))
        return None if report.get("status") == COMPLETED else refusal_from_report(report)

    def _store_results(self, part: ListPart, outputs: Any) -> None:
        failed_indexes = []
        for output in outputs if isinstance(outputs, list) else []:
            if not isinstance(output, dict) or "outputs" not in output:
                raise EndpointError(502, "The endpoint's worker does not know lists of prompts.")
            indexes = part.indexes[output.get("index", 0) :]
            for index, result in zip(indexes, output["outputs"], strict=False):
                if error := result.get("error"):
                    self._errors[index] = error
                    failed_indexes += [] if error.get("retryable") else [index]
                else:
                    self._errors.pop(index, None)
                    self._outputs[index] = create_output(self._items[index], result)
        self._update_progress_bar()
        if failed_indexes:
            raise self._prompt_error(failed_indexes)

    def _prompt_error(self, indexes: Sequence[int]) -> PromptError:
        index = min(index for index in indexes if index in self._errors)
        return PromptError(index, self._errors[index], self._outputs)

    def _record_job_progress(self, first_index: int, progress: Any) -> None:
        if isinstance(progress, dict) and isinstance(done := progress.get("done"), int):
            self._done_counts[first_index] = done
            self._update_progress_bar()

    def _update_progress_bar(self) -> None:
        answered_count = sum(output is not None for output in self._outputs)
        self._bar.update(answered_count + sum(self._done_counts.values()) - self._bar.n)
