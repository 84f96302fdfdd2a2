"""Completions and batches of the endpoint, with LLM Engine's names."""

from collections.abc import AsyncIterable, Iterator
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.connection import TIMEOUT_S as COMPLETION_TIMEOUT
from llm_worker_client.llm_engine.data_types import (
    BatchCompletionContent,
    CompletionStreamResponse,
    CompletionSyncResponse,
    CreateBatchCompletionsModelConfig,
    CreateBatchCompletionsV1Response,
    CreateBatchCompletionsV2Response,
    GpuType,
    ToolConfig,
)

BATCHES = "/v2/batch-completions"
# Arguments that are not of the body.
_BESIDE = {"cls", "model", "timeout", "stream", "request_headers", "more"}
# Arguments of a batch that only its second version has.
_OF_V2 = {"labels", "priority", "cpus", "gpus", "memory", "gpu_type", "storage"}


class Completion:
    """Completions and batches of them."""

    @classmethod
    def create(  # noqa: PLR0913, PLR0917 - LLM Engine's signature
        cls,
        model: str,
        prompt: str,
        max_new_tokens: int = 20,
        temperature: float = 0.2,
        stop_sequences: list[str] | None = None,
        return_token_log_probs: bool | None = False,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        include_stop_str_in_output: bool | None = None,
        guided_json: dict[str, Any] | None = None,
        guided_regex: str | None = None,
        guided_choice: list[str] | None = None,
        guided_grammar: str | None = None,
        timeout: int = COMPLETION_TIMEOUT,
        stream: bool = False,
        request_headers: dict[str, str] | None = None,
        **more: Any,
    ) -> CompletionSyncResponse | Iterator[CompletionStreamResponse]:
        """Complete a prompt.

        Args:
            timeout: seconds without anything new, after which the job is cancelled.
            stream: whether to return an iterator of what is added, token by token.
            request_headers: none, since a job has no headers.
            more: what its reference leaves out: ``skip_special_tokens``.

        Raises:
            BadRequestError: the request is wrong, or larger than a job.
            UnauthorizedError: the platform does not accept the key.
            NotFoundError: there is no such model, or no such endpoint.
            RateLimitExceededError: the platform takes no more requests for now.
            ServerError: the worker or the platform could not answer.
            TimeoutError: nothing has come in time.
            NoKey: there is no key of an account.
        """
        path, body = _asked(locals())
        if stream:
            return connection.stream(path, body, timeout)
        return CompletionSyncResponse.model_validate(connection.call("POST", path, body, timeout))

    @classmethod
    async def acreate(  # noqa: PLR0913, PLR0917 - LLM Engine's signature
        cls,
        model: str,
        prompt: str,
        max_new_tokens: int = 20,
        temperature: float = 0.2,
        stop_sequences: list[str] | None = None,
        return_token_log_probs: bool | None = False,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        include_stop_str_in_output: bool | None = None,
        guided_json: dict[str, Any] | None = None,
        guided_regex: str | None = None,
        guided_choice: list[str] | None = None,
        guided_grammar: str | None = None,
        timeout: int = COMPLETION_TIMEOUT,  # noqa: ASYNC109 - LLM Engine's signature
        stream: bool = False,
        request_headers: dict[str, str] | None = None,
        **more: Any,
    ) -> CompletionSyncResponse | AsyncIterable[CompletionStreamResponse]:
        """As ``create``, with asyncio; a cancelled call cancels its job."""
        path, body = _asked(locals())
        if stream:
            return connection.astream(path, body, timeout)
        return CompletionSyncResponse.model_validate(await connection.acall(path, body, timeout))

    @classmethod
    def batch_create(  # noqa: PLR0913, PLR0917 - LLM Engine's signature
        cls,
        output_data_path: str,
        model_config: CreateBatchCompletionsModelConfig,
        content: BatchCompletionContent | None = None,
        input_data_path: str | None = None,
        data_parallelism: int = 1,
        max_runtime_sec: int = 24 * 3600,
        labels: dict[str, str] | None = None,
        priority: str | None = None,
        use_v2: bool = False,
        tool_config: ToolConfig | None = None,
        cpus: str | float | None = None,
        gpus: int | None = None,
        memory: str | float | None = None,
        gpu_type: GpuType | None = None,
        storage: str | float | None = None,
        request_headers: dict[str, str] | None = None,
    ) -> CreateBatchCompletionsV1Response | CreateBatchCompletionsV2Response:
        """Create a batch; the job that runs it is handed in.

        Raises:
            The errors of ``create``.
        """
        given = {name: _plain(value) for name, value in locals().items()}
        connection.refuse_headers(request_headers)
        left_out = {"cls", "use_v2", "request_headers"} | (set() if use_v2 else _OF_V2)
        body = {name: value for name, value in given.items() if name not in left_out}
        if use_v2:
            body["labels"] = labels or model_config.labels
            created = connection.call("POST", BATCHES, body)
            return CreateBatchCompletionsV2Response.model_validate(created)
        created = connection.call("POST", "/v1/llm/batch-completions", body)
        return CreateBatchCompletionsV1Response.model_validate(created)

    @classmethod
    def get_batch_completion(
        cls, job_id: str, request_headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return a batch, as ``{"job": …}``."""
        connection.refuse_headers(request_headers)
        found: dict[str, Any] = connection.call("GET", _batch(job_id))
        return found

    @classmethod
    def cancel_batch_completion(
        cls, job_id: str, request_headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Cancel a batch, and return ``{"success": …}``."""
        connection.refuse_headers(request_headers)
        answer: dict[str, Any] = connection.call("POST", f"{_batch(job_id)}/actions/cancel")
        return answer


def _asked(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body for the arguments of a completion."""
    connection.refuse_headers(arguments["request_headers"])
    kind = "stream" if arguments["stream"] else "sync"
    model = quote(arguments["model"], safe="")
    body = {name: value for name, value in arguments.items() if name not in _BESIDE}
    path = f"/v1/llm/completions-{kind}?model_endpoint_name={model}"
    return path, {**body, **arguments["more"]}


def _batch(job_id: str) -> str:
    return f"{BATCHES}/{quote(job_id, safe='')}"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return [_plain(each) for each in value] if isinstance(value, list) else value
