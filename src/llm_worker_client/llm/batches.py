"""Items as one batch on the endpoint's volume, which outlives the worker and the script."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx2
from tqdm import tqdm

from llm_worker_client.exchange import LONG
from llm_worker_client.jobs import Job, Run
from llm_worker_client.llm import lines
from llm_worker_client.llm.outputs import EndpointError, PromptError, RequestOutput, output_of
from llm_worker_client.llm.prompts import Item
from llm_worker_client.mapping import Refusal
from llm_worker_client.mapping.forms import LARGEST_FILE
from llm_worker_client.steps import Unreachable
from llm_worker_client.transport import RunpodTransport

# No request goes to this address: each is a job.
V1 = "http://endpoint/v1"
# Seconds between looks at a batch: each is a job of its own.
SHORTEST_LOOK, LONGEST_LOOK = 0.5, 15.0
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class Batch:
    """A batch of prompts.

    Attributes:
        id: by which any script can wait for it: ``LLM.batch(id).outputs()``.
    """

    def __init__(
        self, transport: RunpodTransport, id: str, items: Sequence[Item] | None = None
    ) -> None:
        self.id = id
        self._transport = transport
        self._items = items

    @property
    def status(self) -> str:
        """``validating``, ``in_progress``, ``finalizing``, ``completed``, …"""
        status: str = self._found()["status"]
        return status

    def cancel(self) -> None:
        """Cancel it: what was answered by then stays on the volume."""
        _call(self._transport, "POST", f"/batches/{quote(self.id)}/cancel", json={})

    def resume(self) -> None:
        """Hand in a job that goes on with it, if it has not ended; one that runs already shares it.

        Raises:
            EndpointError: the platform does not take it.
        """
        if self._found()["status"] in _ENDED:
            return
        payload = {"input": {"batch": {"id": self.id}}, "policy": LONG}
        try:
            self._transport.endpoint.advance(Run(Job()).submit(payload, reads=False))
        except Refusal as refusal:
            raise EndpointError.of(refusal) from None
        except Unreachable as lost:
            raise EndpointError(502, f"The platform can't be reached: {lost}") from None

    def outputs(self, use_tqdm: bool = True) -> list[RequestOutput]:
        """Wait for its end; return the outputs in the order of the prompts.

        Ctrl-C ends the waiting, not the batch.

        Raises:
            PromptError: a prompt has failed; it also has what the others got.
            EndpointError: the batch has failed, has expired or was cancelled.
        """
        found = self._ended(use_tqdm)
        status, output, errors = found["status"], found["output_file_id"], found["error_file_id"]
        if status == "failed":
            mistakes = (found.get("errors") or {}).get("data") or [{}]
            raise EndpointError(400, f"{self.id} has failed: {mistakes[0].get('message')}")
        answered = self._lines(output)
        items = self._items
        if items is None:
            # Another script has created the batch.
            asked = self._lines(found["input_file_id"])
            items = [lines.item_of(asked[index]) for index in sorted(asked)]
        outputs = [
            output_of(item, lines.result_of(answered[index])) if index in answered else None
            for index, item in enumerate(items)
        ]
        if wrong := self._lines(errors):
            index = min(wrong)
            raise PromptError(index, lines.error_of(wrong[index]), outputs)
        if status != "completed":
            raise EndpointError(504, f"{self.id} is {status}")
        if None in outputs:
            raise EndpointError(502, f"{self.id} has no line of prompt {outputs.index(None)}")
        return [output for output in outputs if output is not None]

    def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = _call(self._transport, "GET", f"/batches/{quote(self.id)}").json()
        return found

    def _ended(self, use_tqdm: bool) -> dict[str, Any]:
        """Look until it has ended."""
        pause = SHORTEST_LOOK
        with tqdm(desc=self.id, disable=not use_tqdm) as bar:
            while True:
                found = self._found()
                counts = found["request_counts"]
                bar.total = counts["total"]
                bar.update(counts["completed"] + counts["failed"] - bar.n)
                if found["status"] in _ENDED:
                    return found
                time.sleep(pause)
                pause = min(1.5 * pause, LONGEST_LOOK)

    def _lines(self, file_id: str | None) -> dict[int, dict[str, Any]]:
        if file_id is None:
            return {}
        return lines.read(_call(self._transport, "GET", f"/files/{quote(file_id)}/content").content)


def created(
    transport: RunpodTransport, items: Sequence[Item], url: str, shared: Mapping[str, Any]
) -> Batch:
    """Create a batch, which begins at once.

    Raises:
        ValueError, TypeError: an item can't be part of one.
        EndpointError: the endpoint refuses it.
    """
    content = lines.lines_of(items, url, shared)
    if len(content) > LARGEST_FILE:
        message = (
            f"the prompts have {len(content):,} bytes as a batch, and one has {LARGEST_FILE:,}"
        )
        raise ValueError(f"{message}: make several")
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = _call(transport, "POST", "/files", **form).json()
    asked = {"input_file_id": file["id"], "endpoint": url, "completion_window": "14d"}
    batch = _call(transport, "POST", "/batches", json=asked).json()
    return Batch(transport, batch["id"], items)


def _call(transport: RunpodTransport, method: str, path: str, **options: Any) -> httpx2.Response:
    """Return the answer to a request, with its options as httpx2 has them.

    Raises:
        EndpointError: it is an error.
    """
    client = httpx2.Client(transport=transport, base_url=V1, timeout=None)
    try:
        answer = client.request(method, path, **options)
    except httpx2.TransportError as lost:
        raise EndpointError(502, f"The platform can't be reached: {lost}") from None
    if answer.status_code != 200:
        error = answer.json()["error"]
        raise EndpointError(answer.status_code, str(error.get("message")), error)
    return answer
