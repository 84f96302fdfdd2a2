"""LLM Engine's request and response types, with LLM Engine's names."""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class LLMSource(StrEnum):
    """Sources of weights."""

    HUGGING_FACE = "hugging_face"


class LLMInferenceFramework(StrEnum):
    """Inference frameworks that LLM Engine names. This worker always uses vLLM."""

    DEEPSPEED = "deepspeed"
    TEXT_GENERATION_INFERENCE = "text_generation_inference"
    VLLM = "vllm"
    LIGHTLLM = "lightllm"
    TENSORRT_LLM = "tensorrt_llm"


class Quantization(StrEnum):
    """Quantization methods that LLM Engine names. ``Model.create`` refuses bitsandbytes."""

    BITSANDBYTES = "bitsandbytes"
    AWQ = "awq"


class ModelEndpointType(StrEnum):
    """Types of endpoints."""

    STREAMING = "streaming"


class PostInferenceHooks(StrEnum):
    """Actions after inference."""

    CALLBACK = "callback"


class GpuType(StrEnum):
    """GPU types."""

    NVIDIA_TESLA_T4 = "nvidia-tesla-t4"
    NVIDIA_AMPERE_A10 = "nvidia-ampere-a10"
    NVIDIA_AMPERE_A100 = "nvidia-ampere-a100"
    NVIDIA_AMPERE_A100E = "nvidia-ampere-a100e"
    NVIDIA_HOPPER_H100 = "nvidia-hopper-h100"
    NVIDIA_HOPPER_H100_1G_20GB = "nvidia-hopper-h100-1g20gb"
    NVIDIA_HOPPER_H100_3G_40GB = "nvidia-hopper-h100-3g40gb"


class BatchJobStatus(StrEnum):
    """The status of a fine-tune; the name is LLM Engine's."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"
    UNDEFINED = "UNDEFINED"
    TIMEOUT = "TIMEOUT"


class BatchCompletionsJobStatus(StrEnum):
    """The status of a batch; the names are LLM Engine's."""

    Queued = "queued"
    Running = "running"
    Completed = "completed"
    Failed = "failed"
    Cancelled = "cancelled"
    Unknown = "unknown"


class DataModel(BaseModel):
    """Base class of responses. ``json`` and ``dict`` work as in LLM Engine's own models."""

    def json(self, **options: Any) -> str:
        """Return the values as JSON; the options are passed to ``json.dumps``."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), **options)

    def dict(self) -> dict[str, Any]:  # type: ignore[override]  # scripts call it
        """Return the values by their names in JSON."""
        return self.model_dump(by_alias=True)


class RequestModel(DataModel):
    """Base class of requests. Unknown fields are sent as well, since the worker validates them."""

    model_config = ConfigDict(extra="allow")


# Completions.


class TokenOutput(DataModel):
    """A token and its log probability."""

    token: str
    log_prob: float


class CompletionOutput(DataModel):
    """A completion and its numbers of tokens."""

    text: str
    num_prompt_tokens: int | None = None
    num_completion_tokens: int
    tokens: list[TokenOutput] | None = None


class CompletionSyncResponse(DataModel):
    """The response of ``Completion.create`` without ``stream``."""

    request_id: str
    output: CompletionOutput


class CompletionStreamOutput(DataModel):
    """A piece of the generated text, with the number of tokens generated so far.

    ``token`` is set if log probabilities were requested, ``num_prompt_tokens`` in the last piece.
    """

    text: str
    finished: bool
    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    token: TokenOutput | None = None


class StreamErrorContent(DataModel):
    """The message and the time of an error in a stream."""

    error: str
    timestamp: str | None = None


class StreamError(DataModel):
    """An error that occurs after a stream has begun."""

    status_code: int
    content: StreamErrorContent


class CompletionStreamResponse(DataModel):
    """An event of a stream: an output or an error."""

    request_id: str | None = None
    output: CompletionStreamOutput | None = None
    error: StreamError | None = None


# Batches.


class CreateBatchCompletionsModelConfig(RequestModel):
    """The model of a batch."""

    model: str
    checkpoint_path: str | None = None
    labels: dict[str, str] | None = None


class CreateBatchCompletionsRequestContent(RequestModel):
    """The prompts of a batch and their sampling parameters."""

    prompts: list[str]
    max_new_tokens: int
    temperature: float = Field(ge=0, le=1)


class FilteredCompletionV2Request(RequestModel):
    """A completion request of a batch, in OpenAI's format."""

    prompt: str | list[str]


class FilteredChatCompletionV2Request(RequestModel):
    """A chat request of a batch, in OpenAI's format."""

    messages: list[dict[str, Any]]


class ToolConfig(RequestModel):
    """A tool for a batch. The worker refuses batches with tools."""

    name: str


BatchCompletionContent = (
    CreateBatchCompletionsRequestContent
    | list[FilteredCompletionV2Request]
    | list[FilteredChatCompletionV2Request]
)


class CreateBatchCompletionsV1Response(DataModel):
    """The id of a batch."""

    job_id: str


class CreateBatchCompletionsV2Response(DataModel):
    """A batch. Its ``model_config`` has a longer name here, as pydantic reserves that name."""

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


class CreateFineTuneResponse(DataModel):
    """The id of a fine-tune."""

    id: str


class GetFineTuneResponse(DataModel):
    """A fine-tune. ``fine_tuned_model`` is the adapter's name, or None before the result exists."""

    id: str
    fine_tuned_model: str | None = None
    status: BatchJobStatus


class ListFineTunesResponse(DataModel):
    """All fine-tunes."""

    jobs: list[GetFineTuneResponse]


class CancelFineTuneResponse(DataModel):
    """Whether a fine-tune was cancelled; false if it had already ended."""

    success: bool


class LLMFineTuneEvent(DataModel):
    """An event of a fine-tune; the timestamp is in seconds since 1970."""

    timestamp: float | None = None
    message: str
    level: str


class GetFineTuneEventsResponse(DataModel):
    """All events of a fine-tune."""

    events: list[LLMFineTuneEvent]


# Models and files.


class GetLLMEndpointResponse(DataModel):
    """A model or an adapter that the endpoint serves."""

    id: str | None = None
    name: str
    model_name: str | None = None
    source: LLMSource
    status: str
    inference_framework: LLMInferenceFramework
    inference_framework_tag: str | None = None
    num_shards: int | None = None
    quantize: Quantization | str | None = None
    spec: dict[str, Any] | None = None


class ListLLMEndpointsResponse(DataModel):
    """All models and adapters that the endpoint serves."""

    model_endpoints: list[GetLLMEndpointResponse]


class CreateLLMEndpointResponse(DataModel):
    """The id of a new endpoint."""

    endpoint_creation_task_id: str


class UpdateLLMEndpointResponse(DataModel):
    """The id of a changed endpoint."""

    endpoint_creation_task_id: str


class DeleteLLMEndpointResponse(DataModel):
    """Whether an endpoint or an adapter was deleted."""

    deleted: bool


class DownloadModelResponse(DataModel):
    """The URLs of a model's files, by file name."""

    urls: dict[str, str]


class UploadFileResponse(DataModel):
    """The id of an uploaded file."""

    id: str


class GetFileResponse(DataModel):
    """The id and the name of a file, and its size in bytes."""

    id: str
    filename: str
    size: int


class GetFileContentResponse(DataModel):
    """The text of a file."""

    id: str
    content: str


class ListFilesResponse(DataModel):
    """All files."""

    files: list[GetFileResponse]


class DeleteFileResponse(DataModel):
    """Whether a file was deleted."""

    deleted: bool


# LLM Engine's other names for types above.
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
