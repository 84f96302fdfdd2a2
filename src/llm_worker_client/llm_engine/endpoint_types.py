"""Response types of LLM Engine's models and files."""

from typing import Any

from llm_worker_client.llm_engine.kinds import (
    DataModel,
    LLMInferenceFramework,
    LLMSource,
    Quantization,
)


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
