"""Batches of prompts on the endpoint's volume, which continue after the script has exited."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx2
from tqdm import tqdm

from llm_worker_client.llm import lines
from llm_worker_client.llm.outputs import EndpointError, PromptError, RequestOutput, create_output
from llm_worker_client.llm.prompts import Item
from llm_worker_client.mapping.forms import MAX_FILE_BYTES
from llm_worker_client.terminal import make_printable
from llm_worker_client.transport import RunpodTransport

# Placeholder base URL; the transport ignores it and turns each request into a job.
BASE_URL = "http://endpoint/v1"
# Minimum and maximum seconds between two polls of a batch; each poll is a job.
MIN_POLL_DELAY, MAX_POLL_DELAY = 0.5, 15.0
# Maximum number of times that a request is sent if workers answer that a retry may succeed.
MAX_ATTEMPTS = 8
_ENDED_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})


class Batch:
    """A batch of prompts or conversations.

    Attributes:
        id: Id of the batch, for ``LLM.resume_batch(id).wait_for_outputs()`` in any script.
    """

    def __init__(
        self, transport: RunpodTransport, id: str, items: Sequence[Item] | None = None
    ) -> None:
        self.id = id
        self._transport = transport
        self._items = items

    @property
    def status(self) -> str:
        """Current status as in OpenAI's API, such as ``in_progress``; each access is a request."""
        status: str = self._retrieve_batch_object()["status"]
        return status

    def cancel(self) -> None:
        """Cancel the batch; results so far stay on the volume."""
        _send(self._transport, "POST", f"/batches/{quote(self.id)}/cancel", json={})

    def check_run(self) -> None:
        """Request the batch: if no worker runs it, the transport sends the job that does.

        Raises:
            EndpointError: If the batch doesn't exist, or the platform can't be reached.
        """
        self._retrieve_batch_object()

    def wait_for_outputs(self, use_tqdm: bool = True) -> list[RequestOutput]:
        """Wait for the end of the batch; return the outputs in the order of the prompts.

        Ctrl-C stops this method; the batch continues.

        Raises:
            PromptError: If a prompt failed; the error contains the outputs of the other prompts.
            EndpointError: If the batch did not complete, an output is missing, or a request failed.
        """
        batch = self._wait_for_end(use_tqdm)
        status, output, errors = batch["status"], batch["output_file_id"], batch["error_file_id"]
        if status == "failed":
            mistakes = (batch.get("errors") or {}).get("data") or [{}]
            raise EndpointError(400, f"{self.id} has failed: {mistakes[0].get('message')}")
        output_lines = self._download_lines(output)
        items = self._items
        if items is None:
            # The batch was opened by its id, so only its input file contains the items.
            input_lines = self._download_lines(batch["input_file_id"])
            items = [lines.parse_input_item(input_lines[index]) for index in sorted(input_lines)]
        outputs = [
            create_output(item, lines.parse_result(output_lines[i])) if i in output_lines else None
            for i, item in enumerate(items)
        ]
        if error_lines := self._download_lines(errors):
            index = min(error_lines)
            raise PromptError(index, lines.parse_error(error_lines[index]), outputs)
        if status != "completed":
            raise EndpointError(504, f"{self.id} is {status}")
        if None in outputs:
            raise EndpointError(502, f"{self.id} has no result for prompt {outputs.index(None)}")
        return [output for output in outputs if output is not None]

    def _retrieve_batch_object(self) -> dict[str, Any]:
        response = _send(self._transport, "GET", f"/batches/{quote(self.id)}")
        batch: dict[str, Any] = response.json()
        return batch

    def _wait_for_end(self, use_tqdm: bool) -> dict[str, Any]:
        pause = MIN_POLL_DELAY
        with tqdm(desc=make_printable(self.id), disable=not use_tqdm) as bar:
            while True:
                batch = self._retrieve_batch_object()
                counts = batch["request_counts"]
                bar.total = counts["total"]
                bar.update(counts["completed"] + counts["failed"] - bar.n)
                if batch["status"] in _ENDED_STATUSES:
                    return batch
                time.sleep(pause)
                pause = min(1.5 * pause, MAX_POLL_DELAY)

    def _download_lines(self, file_id: str | None) -> dict[int, dict[str, Any]]:
        if file_id is None:
            return {}
        response = _send(self._transport, "GET", f"/files/{quote(file_id)}/content")
        return lines.parse_lines_by_index(response.content)


def create_batch(
    transport: RunpodTransport, items: Sequence[Item], url: str, shared: Mapping[str, Any]
) -> Batch:
    """Upload items and start a batch of them on a route (``url``); all bodies contain ``shared``.

    Raises:
        ValueError, TypeError: If an item can't be in a batch, or the input file would be too large.
        EndpointError: If the endpoint refuses the batch or the platform can't be reached.
    """
    content = lines.encode_input_file(items, url, shared)
    if len(content) > MAX_FILE_BYTES:
        message = f"the prompts have {len(content):,} bytes as a batch; the maximum is"
        raise ValueError(f"{message} {MAX_FILE_BYTES:,}: make several")
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = _send(transport, "POST", "/files", **form).json()
    body = {"input_file_id": file["id"], "endpoint": url, "completion_window": "14d"}
    batch = _send(transport, "POST", "/batches", json=body).json()
    return Batch(transport, batch["id"], items)


def _send(transport: RunpodTransport, method: str, path: str, **options: Any) -> httpx2.Response:
    """Send a request and return the response; ``options`` are those of httpx2.

    Raises:
        EndpointError: If the response is an error or the platform doesn't respond.
    """
    client = httpx2.Client(transport=transport, base_url=BASE_URL, timeout=None)
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(min(MIN_POLL_DELAY * 2 ** (attempt - 1), MAX_POLL_DELAY))
        try:
            response = client.request(method, path, **options)
        except httpx2.TransportError as error:
            raise EndpointError(502, f"The platform can't be reached: {error}") from None
        # Another worker may answer, for example one with the volume that the batch is on.
        if response.status_code != 503 or "retry-after" not in response.headers:
            break
    if response.status_code != 200:
        error_object = response.json()["error"]
        raise EndpointError(response.status_code, str(error_object.get("message")), error_object)
    return response
