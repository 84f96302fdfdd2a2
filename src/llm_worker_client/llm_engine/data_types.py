"""What LLM Engine's classes take and return, with its names."""

from typing import Any

from pydantic import Field

from llm_worker_client.llm_engine.endpoint_types import (
    CreateLLMEndpointResponse,
    DeleteFileResponse,
    DeleteLLMEndpointResponse,
    DownloadModelResponse,
    GetFileContentResponse,
    GetFileResponse,
    GetLLMEndpointResponse,
    ListFilesResponse,
    ListLLMEndpointsResponse,
    UpdateLLMEndpointResponse,
    UploadFileResponse,
)
from llm_worker_client.llm_engine.kinds import (
    Asked,
    BatchCompletionsJobStatus,
    BatchJobStatus,
    Data,
    GpuType,
    LLMInferenceFramework,
    LLMSource,
    ModelEndpointType,
    PostInferenceHooks,
    Quantization,
)

# Completions.


class TokenOutput(Data):
    """A token and its log probability."""

    token: str
    log_prob: float


class CompletionOutput(Data):
    """A completion, with counts of tokens."""

    text: str
    num_prompt_tokens: int | None = None
    num_completion_tokens: int
    tokens: list[TokenOutput] | None = None


class CompletionSyncResponse(Data):
    """The answer to ``Completion.create``."""

    request_id: str
    output: CompletionOutput


class CompletionStreamOutput(Data):
    """What a token has added; the last one also counts the prompt's tokens."""

    text: str
    finished: bool
    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    token: TokenOutput | None = None


class StreamErrorContent(Data):
    """Why a stream ended."""

    error: str
    timestamp: str | None = None


class StreamError(Data):
    """An error after a stream has begun."""

    status_code: int
    content: StreamErrorContent


class CompletionStreamResponse(Data):
    """An event of a stream: an output, or an error in its place."""

    request_id: str | None = None
    output: CompletionStreamOutput | None = None
    error: StreamError | None = None


# Batches.


class CreateBatchCompletionsModelConfig(Asked):
    """Which model answers a batch."""

    model: str
    checkpoint_path: str | None = None
    labels: dict[str, str] | None = None


class CreateBatchCompletionsRequestContent(Asked):
    """Prompts of a batch, and how they are completed."""

    prompts: list[str]
    max_new_tokens: int
    temperature: float = Field(ge=0, le=1)


class FilteredCompletionV2Request(Asked):
    """A completion of a batch, as OpenAI's."""

    prompt: str | list[str]


class FilteredChatCompletionV2Request(Asked):
    """A chat of a batch, as OpenAI's."""

    messages: list[dict[str, Any]]


class ToolConfig(Asked):
    """A tool that a batch would use, which the worker refuses."""

    name: str


BatchCompletionContent = (
    CreateBatchCompletionsRequestContent
    | list[FilteredCompletionV2Request]
    | list[FilteredChatCompletionV2Request]
)


class CreateBatchCompletionsV1Response(Data):
    """The id of a batch."""

    job_id: str


class CreateBatchCompletionsV2Response(Data):
    """A batch. Pydantic has a ``model_config`` of its own, so that here it has a longer name."""

    job_id: str
    input_data_path: str | None = None
    output_data_path: str
    model_configuration: dict[str, Any] = Field(alias="model_config")
    priority: str | None = None
    status: BatchCompletionsJobStatus
    created_at: str
    expires_at: str
    completed_at: str | None = None
    metadata: dict[str, str] | None = None


# Fine-tunes.


class CreateFineTuneResponse(Data):
    """The id of a fine-tune."""

    id: str


class GetFineTuneResponse(Data):
    """A fine-tune; the model's name is there when it is served."""

    id: str
    fine_tuned_model: str | None = None
    status: BatchJobStatus


class ListFineTunesResponse(Data):
    """All fine-tunes."""

    jobs: list[GetFineTuneResponse]


class CancelFineTuneResponse(Data):
    """Whether a fine-tune was cancelled."""

    success: bool


class LLMFineTuneEvent(Data):
    """What happened in a fine-tune; the time is in seconds since 1970."""

    timestamp: float | None = None
    message: str
    level: str


class GetFineTuneEventsResponse(Data):
    """All that happened in a fine-tune."""

    events: list[LLMFineTuneEvent]


# Other names of LLM Engine's for these.
BatchCompletionsJob = CreateBatchCompletionsV2Response
BatchCompletionsModelConfig = CreateBatchCompletionsModelConfig
CompletionStreamV1Response = CompletionStreamResponse
CompletionSyncV1Response = CompletionSyncResponse
CreateBatchCompletionsResponse = CreateBatchCompletionsV1Response
CreateBatchCompletionsV1ModelConfig = CreateBatchCompletionsModelConfig
CreateBatchCompletionsV1RequestContent = CreateBatchCompletionsRequestContent
CreateBatchCompletionsV2ModelConfig = CreateBatchCompletionsModelConfig
CreateBatchCompletionsV2RequestContent = (
    list[FilteredCompletionV2Request] | list[FilteredChatCompletionV2Request]
)
ModelDownloadResponse = DownloadModelResponse

__all__ = [
    "BatchCompletionContent",
    "BatchCompletionsJob",
    "BatchCompletionsJobStatus",
    "BatchCompletionsModelConfig",
    "BatchJobStatus",
    "CancelFineTuneResponse",
    "CompletionOutput",
    "CompletionStreamOutput",
    "CompletionStreamResponse",
    "CompletionStreamV1Response",
    "CompletionSyncResponse",
    "CompletionSyncV1Response",
    "CreateBatchCompletionsModelConfig",
    "CreateBatchCompletionsRequestContent",
    "CreateBatchCompletionsResponse",
    "CreateBatchCompletionsV1ModelConfig",
    "CreateBatchCompletionsV1RequestContent",
    "CreateBatchCompletionsV1Response",
    "CreateBatchCompletionsV2ModelConfig",
    "CreateBatchCompletionsV2RequestContent",
    "CreateBatchCompletionsV2Response",
    "CreateFineTuneResponse",
    "CreateLLMEndpointResponse",
    "DeleteFileResponse",
    "DeleteLLMEndpointResponse",
    "DownloadModelResponse",
    "FilteredChatCompletionV2Request",
    "FilteredCompletionV2Request",
    "GetFileContentResponse",
    "GetFileResponse",
    "GetFineTuneEventsResponse",
    "GetFineTuneResponse",
    "GetLLMEndpointResponse",
    "GpuType",
    "LLMFineTuneEvent",
    "LLMInferenceFramework",
    "LLMSource",
    "ListFilesResponse",
    "ListFineTunesResponse",
    "ListLLMEndpointsResponse",
    "ModelDownloadResponse",
    "ModelEndpointType",
    "PostInferenceHooks",
    "Quantization",
    "StreamError",
    "StreamErrorContent",
    "TokenOutput",
    "ToolConfig",
    "UpdateLLMEndpointResponse",
    "UploadFileResponse",
]
