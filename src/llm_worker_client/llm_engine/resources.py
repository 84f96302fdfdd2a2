"""LLM Engine's classes ``Completion``, ``FineTune`` and ``File``; each call is a request."""

from collections.abc import AsyncIterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.data_types import (
    BatchCompletionContent,
    CancelFineTuneResponse,
    CompletionStreamResponse,
    CompletionSyncResponse,
    CreateBatchCompletionsModelConfig,
    CreateBatchCompletionsV1Response,
    CreateBatchCompletionsV2Response,
    CreateFineTuneResponse,
    DeleteFileResponse,
    GetFileContentResponse,
    GetFileResponse,
    GetFineTuneEventsResponse,
    GetFineTuneResponse,
    GpuType,
    ListFilesResponse,
    ListFineTunesResponse,
    ToolConfig,
    UploadFileResponse,
)

BATCHES_PATH = "/v2/batch-completions"
# Arguments of ``create`` that are not fields of the request's body.
_ARGUMENTS_NOT_IN_BODY = {"cls", "model", "timeout", "stream", "request_headers", "more"}
# Arguments of ``batch_create`` that only version 2 of the batch API has.
_V2_ARGUMENTS = {"labels", "priority", "cpus", "gpus", "memory", "gpu_type", "storage"}
FINE_TUNES_PATH = "/v1/llm/fine-tunes"
FILES_PATH = "/v1/files"


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
        timeout: int = connection.TIMEOUT_S,
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
        timeout: int = connection.TIMEOUT_S,  # noqa: ASYNC109 - LLM Engine's signature
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


class FineTune:
    """Fine-tunes. Errors are those of ``Completion.create``."""

    @classmethod
    def create(
        cls,
        model: str,
        training_file: str,
        validation_file: str | None = None,
        hyperparameters: dict[str, str | int | float] | None = None,
        wandb_config: dict[str, Any] | None = None,
        suffix: str | None = None,
    ) -> CreateFineTuneResponse:
        """Create a fine-tune of the endpoint's model and submit the job that trains an adapter."""
        body = {name: value for name, value in locals().items() if name != "cls"}
        return CreateFineTuneResponse.model_validate(connection.call("POST", FINE_TUNES_PATH, body))

    @classmethod
    def get(cls, fine_tune_id: str) -> GetFineTuneResponse:
        """Return the status of a fine-tune."""
        return GetFineTuneResponse.model_validate(
            connection.call("GET", _fine_tune_url(fine_tune_id))
        )

    @classmethod
    def get_events(cls, fine_tune_id: str) -> GetFineTuneEventsResponse:
        """Return the events of a fine-tune."""
        events = connection.call("GET", f"{_fine_tune_url(fine_tune_id)}/events")
        return GetFineTuneEventsResponse.model_validate(events)

    @classmethod
    def list(cls) -> ListFineTunesResponse:
        """Return all fine-tunes."""
        return ListFineTunesResponse.model_validate(connection.call("GET", FINE_TUNES_PATH))

    @classmethod
    def cancel(cls, fine_tune_id: str) -> CancelFineTuneResponse:
        """Cancel a fine-tune."""
        response = connection.call("PUT", f"{_fine_tune_url(fine_tune_id)}/cancel")
        return CancelFineTuneResponse.model_validate(response)


class File:
    """The files that batches and fine-tunes read. Errors are those of ``Completion.create``."""

    @classmethod
    def upload(cls, file: BufferedReader) -> UploadFileResponse:
        """Upload a file that is open in text or binary mode.

        Files above 14 MB need the volume's options in the environment, such as RUNPOD_VOLUME_ID.
        """
        # A file in memory has no name and is uploaded as "file".
        name = Path(str(getattr(file, "name", "file"))).name
        content: BufferedReader | bytes | str = file
        # Only a binary file that is still unread can be sent in parts.
        if not (isinstance(file, BufferedReader) and file.seekable() and file.tell() == 0):
            content = file.read()
        if isinstance(content, str):
            content = content.encode()
        response = connection.call("POST", FILES_PATH, files={"file": (name, content)})
        return UploadFileResponse.model_validate(response)

    @classmethod
    def get(cls, file_id: str) -> GetFileResponse:
        """Return the name and the size of a file."""
        return GetFileResponse.model_validate(connection.call("GET", _file_url(file_id)))

    @classmethod
    def download(cls, file_id: str) -> GetFileContentResponse:
        """Return the text of a file."""
        return GetFileContentResponse.model_validate(
            connection.call("GET", f"{_file_url(file_id)}/content")
        )

    @classmethod
    def list(cls) -> ListFilesResponse:
        """Return all files."""
        return ListFilesResponse.model_validate(connection.call("GET", FILES_PATH))

    @classmethod
    def delete(cls, file_id: str) -> DeleteFileResponse:
        """Delete a file."""
        return DeleteFileResponse.model_validate(connection.call("DELETE", _file_url(file_id)))


def _file_url(file_id: str) -> str:
    return f"{FILES_PATH}/{quote(file_id, safe='')}"


def _fine_tune_url(fine_tune_id: str) -> str:
    return f"{FINE_TUNES_PATH}/{quote(fine_tune_id, safe='')}"


def _build_completion_request(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
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
