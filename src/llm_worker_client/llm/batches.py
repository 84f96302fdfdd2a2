"""Batches of prompts on the endpoint's volume, which continue after the script has exited.

Prompts become lines of a batch's input file in OpenAI's format; the lines of its output files are
converted to the results of raw jobs (jobs in the worker's own format).
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx2
from tqdm import tqdm

from llm_worker_client.llm.inputs import Item, encode_json
from llm_worker_client.llm.outputs import EndpointError, PromptError, RequestOutput, create_output
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
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# Default parameters of raw jobs. A batch's lines contain them, as otherwise the defaults in the
# model's generation config would apply.
RAW_JOB_DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
# Parameters that only raw jobs support, with their defaults. Batches reject other values.
RAW_ONLY_PARAMETERS: Mapping[str, Any] = {
    "detokenize": True,
    "flat_logprobs": False,
    "prompt_logprobs": None,
    "routed_experts_prompt_start": 0,
    "skip_reading_prefix_cache": False,
    "trace_decode_token_ids": None,
}
# Tokens are requested as "token_id:5" because several tokens can have the same text.
_TOKEN_ID_PREFIX = "token_id:"
_TOKEN_ID_OPTIONS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


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
        status: str = self.retrieve()["status"]
        return status

    def cancel(self) -> None:
        """Cancel the batch; results so far stay on the volume."""
        _send(self._transport, "POST", f"/batches/{quote(self.id)}/cancel", json={})

    def wait_for_outputs(self, use_tqdm: bool = True) -> list[RequestOutput]:
        """Wait for the end of the batch; return the outputs in the order of the prompts.

        Ctrl-C stops this method; the batch continues.

        Raises:
            PromptError: If a prompt failed; the error contains the outputs of the other prompts.
            EndpointError: If the batch did not complete, an output is missing, or a request failed.
        """
        pause = MIN_POLL_DELAY
        with tqdm(desc=make_printable(self.id), disable=not use_tqdm) as bar:
            while True:
                batch = self.retrieve()
                counts = batch["request_counts"]
                bar.total = counts["total"]
                bar.update(counts["completed"] + counts["failed"] - bar.n)
                if batch["status"] in _ENDED_STATUSES:
                    break
                time.sleep(pause)
                pause = min(1.5 * pause, MAX_POLL_DELAY)

        status = batch["status"]
        if status == "failed":
            mistakes = (batch.get("errors") or {}).get("data") or [{}]
            raise EndpointError(400, f"{self.id} has failed: {mistakes[0].get('message')}")
        output_lines = self._download_lines(batch["output_file_id"])
        items = self._items
        if items is None:
            # The batch was opened by its id, so only its input file contains the items.
            input_lines = self._download_lines(batch["input_file_id"])
            items = [parse_input_item(input_lines[index]) for index in sorted(input_lines)]
        outputs = [
            create_output(item, parse_result(output_lines[i])) if i in output_lines else None
            for i, item in enumerate(items)
        ]
        if error_lines := self._download_lines(batch["error_file_id"]):
            index = min(error_lines)
            raise PromptError(index, parse_error(error_lines[index]), outputs)
        if status != "completed":
            raise EndpointError(504, f"{self.id} is {status}")
        if None in outputs:
            raise EndpointError(502, f"{self.id} has no result for prompt {outputs.index(None)}")
        return [output for output in outputs if output is not None]

    def retrieve(self) -> dict[str, Any]:
        """Return OpenAI's batch object; if no worker runs the batch, this sends the job that does.

        Raises:
            EndpointError: If the batch doesn't exist or the platform can't be reached.
        """
        response = _send(self._transport, "GET", f"/batches/{quote(self.id)}")
        batch: dict[str, Any] = response.json()
        return batch

    def _download_lines(self, file_id: str | None) -> dict[int, dict[str, Any]]:
        """Return the parsed lines of a file by the index of their prompt; {} without a file."""
        if file_id is None:
            return {}
        response = _send(self._transport, "GET", f"/files/{quote(file_id)}/content")
        lines = map(json.loads, response.content.splitlines())
        return {int(line["custom_id"]): line for line in lines}


def create_batch(
    transport: RunpodTransport, items: Sequence[Item], url: str, shared: Mapping[str, Any]
) -> Batch:
    """Upload items and start a batch of them on a route (``url``); all bodies have ``shared``."""
    content = encode_input_file(items, url, shared)
    if len(content) > MAX_FILE_BYTES:
        message = f"the prompts have {len(content):,} bytes as a batch; the maximum is"
        raise ValueError(f"{message} {MAX_FILE_BYTES:,}: make several")
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = _send(transport, "POST", "/files", **form).json()
    body = {"input_file_id": file["id"], "endpoint": url, "completion_window": "14d"}
    batch = _send(transport, "POST", "/batches", json=body).json()
    return Batch(transport, batch["id"], items)


def _send(transport: RunpodTransport, method: str, path: str, **options: Any) -> httpx2.Response:
    """Send a request, repeatedly if another worker may answer it; ``options`` are httpx2's."""
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


def encode_input_file(items: Sequence[Item], url: str, shared: Mapping[str, Any]) -> bytes:
    """Return a batch's input file for a route (``url``); custom ids are the items' indexes."""
    bodies = {id(item.params): _to_body_params(item.params, url) for item in items}
    lines = []
    for index, item in enumerate(items):
        prompt = {"messages" if url == CHATS else "prompt": item.content}
        adapter = {} if item.adapter is None else {"model": item.adapter}
        body = {**shared, **prompt, **bodies[id(item.params)], **adapter}
        line = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
        lines.append(encode_json(line, f"prompt {index}") + "\n")
    return "".join(lines).encode()


def _to_body_params(params: Mapping[str, Any], url: str) -> dict[str, Any]:
    remaining = dict(params)
    if remaining.pop("return_token_log_probs", False):
        remaining.setdefault("logprobs", 0)
    for name in remaining.keys() & RAW_ONLY_PARAMETERS.keys():
        if remaining.pop(name) != RAW_ONLY_PARAMETERS[name]:
            raise ValueError(f"sampling_params.{name}: batches don't support it")
    body = {**RAW_JOB_DEFAULTS, **remaining, **_TOKEN_ID_OPTIONS}
    if params.get("use_beam_search"):
        # Beam search rejects RAW_JOB_DEFAULTS except max_tokens, even with default values.
        body = {
            name: body[name] for name in body.keys() - (RAW_JOB_DEFAULTS.keys() - params.keys())
        }
        body.setdefault("max_tokens", RAW_JOB_DEFAULTS["max_tokens"])
    if url == CHATS and (count := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": count}
    return body


def parse_input_item(line: Mapping[str, Any]) -> Item:
    """Return the item of an input line, with only the parameters that ``create_output`` reads."""
    body = line["body"]
    prompt = body.get("messages", body.get("prompt"))
    params = {"logprobs": body.get("top_logprobs", body.get("logprobs"))}
    return Item(prompt, params, None, prompt if isinstance(prompt, str) else None)


def parse_result(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in an output line, converted to the format of raw jobs."""
    body = line["response"]["body"]
    choices = []
    for choice in body["choices"]:
        message, logprobs = choice.get("message"), choice.get("logprobs")
        text = choice.get("text") if message is None else message.get("content")
        entries = None if logprobs is None else _to_raw_logprobs(logprobs)
        choices.append({**choice, "tokens": [text or ""], "logprobs": entries})
    return {
        "request_id": body.get("id", ""),
        "prompt_token_ids": body.get("prompt_token_ids", choices[0].get("prompt_token_ids")),
        "usage": {"input": body["usage"]["prompt_tokens"]},
        "choices": choices,
    }


def parse_error(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error object in a line of the error file; its default code is the HTTP status."""
    response = line.get("response") or {}
    error = (response.get("body") or {}).get("error") or line.get("error") or {}
    return {"code": response.get("status_code"), **error}


def _to_raw_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert the log probabilities of a chat or a completion to the format of raw jobs."""
    if (content := logprobs.get("content")) is not None:
        chosen = [(one["token"], one["logprob"]) for one in content]
        tops = [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in content]
    else:
        chosen = [*zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]
        tops = logprobs.get("top_logprobs") or [{}] * len(chosen)
    entries = []
    for (token, logprob), top in zip(chosen, tops, strict=True):
        # The chosen token may not be among the likeliest ones.
        candidates = {**(top or {}), token: logprob}
        names = sorted(candidates, key=candidates.__getitem__, reverse=True)
        ids = [int(name.removeprefix(_TOKEN_ID_PREFIX)) for name in names]
        ranked = [
            {"id": id, "logprob": candidates[name], "token": None}
            for id, name in zip(ids, names, strict=True)
        ]
        entries.append({"logprob": logprob, "top": ranked})
    return entries
