"""LLM Engine's class ``Completion``, for the completions and batches of an endpoint."""

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

BATCHES_PATH = "/v2/batch-completions"
# Arguments of ``create`` that are not fields of the request's body.
_ARGUMENTS_NOT_IN_BODY = {"cls", "model", "timeout", "stream", "request_headers", "more"}
# Arguments of ``batch_create`` that only version 2 of the batch API has.
_V2_ARGUMENTS = {"labels", "priority", "cpus", "gpus", "memory", "gpu_type", "storage"}


class Completion:
    """Creates completions; creates, returns and cancels batches of completions."""

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
        """Complete a prompt, with the arguments of LLM Engine's reference.

        The job is cancelled if no output arrives for ``timeout`` seconds. ``request_headers`` must
        be empty. ``more`` may have ``skip_special_tokens``, which LLM Engine accepts as well.

        Raises:
            BadRequestError: If the request is invalid or too large for a job.
            UnauthorizedError: If the platform does not accept the key.
            NotFoundError: If there is no such model or endpoint.
            RateLimitExceededError: If the platform accepts no more requests for now.
            ServerError: If the worker or the platform fails to respond.
            TimeoutError: If nothing arrives in time.
            NoApiKey: If no account key is configured.
        """
        path, body = _build_completion_request(locals())
        if stream:
            return connection.stream_events(path, body, timeout)
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
        """Complete a prompt like ``create``, with asyncio; cancelling the task cancels the job."""
        path, body = _build_completion_request(locals())
        if stream:
            return connection.astream_events(path, body, timeout)
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
        """Create a batch and submit the job that runs it. Errors are those of ``create``."""
        arguments = {name: _to_json_types(value) for name, value in locals().items()}
        connection.refuse_request_headers(request_headers)
        excluded = {"cls", "use_v2", "request_headers"} | (set() if use_v2 else _V2_ARGUMENTS)
        body = {name: value for name, value in arguments.items() if name not in excluded}
        if use_v2:
            body["labels"] = labels or model_config.labels
            created = connection.call("POST", BATCHES_PATH, body)
            return CreateBatchCompletionsV2Response.model_validate(created)
        created = connection.call("POST", "/v1/llm/batch-completions", body)
        return CreateBatchCompletionsV1Response.model_validate(created)

    @classmethod
    def get_batch_completion(
        cls, job_id: str, request_headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return a batch as ``{"job": …}``."""
        connection.refuse_request_headers(request_headers)
        batch: dict[str, Any] = connection.call("GET", _batch_url(job_id))
        return batch

    @classmethod
    def cancel_batch_completion(
        cls, job_id: str, request_headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Cancel a batch and return ``{"success": …}``."""
        connection.refuse_request_headers(request_headers)
        response: dict[str, Any] = connection.call("POST", f"{_batch_url(job_id)}/actions/cancel")
        return response


def _build_completion_request(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a completion request."""
    connection.refuse_request_headers(arguments["request_headers"])
    kind = "stream" if arguments["stream"] else "sync"
    model = quote(arguments["model"], safe="")
    body = {name: value for name, value in arguments.items() if name not in _ARGUMENTS_NOT_IN_BODY}
    path = f"/v1/llm/completions-{kind}?model_endpoint_name={model}"
    return path, {**body, **arguments["more"]}


def _batch_url(job_id: str) -> str:
    return f"{BATCHES_PATH}/{quote(job_id, safe='')}"


def _to_json_types(value: Any) -> Any:
    """Convert a model, or a list of models, to JSON types; return other values unchanged."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return [_to_json_types(each) for each in value] if isinstance(value, list) else value
