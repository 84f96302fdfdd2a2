"""What LLM Engine's models and files are returned as."""

from typing import Any

from llm_worker_client.llm_engine.kinds import (
    Data,
    LLMInferenceFramework,
    LLMSource,
    Quantization,
)


class GetLLMEndpointResponse(Data):
    """A model."""

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


class ListLLMEndpointsResponse(Data):
    """All models."""

    model_endpoints: list[GetLLMEndpointResponse]


class CreateLLMEndpointResponse(Data):
    """The id of an endpoint that was created."""

    endpoint_creation_task_id: str


class UpdateLLMEndpointResponse(Data):
    """The id of an endpoint that was changed."""

    endpoint_creation_task_id: str


class DeleteLLMEndpointResponse(Data):
    """Whether a model was deleted."""

    deleted: bool


class DownloadModelResponse(Data):
    """Where the files of a model are, by their names."""

    urls: dict[str, str]


class UploadFileResponse(Data):
    """The id of a file."""

    id: str


class GetFileResponse(Data):
    """A file; its size is in bytes."""

    id: str
    filename: str
    size: int


class GetFileContentResponse(Data):
    """The text of a file."""

    id: str
    content: str


class ListFilesResponse(Data):
    """All files."""

    files: list[GetFileResponse]


class DeleteFileResponse(Data):
    """Whether a file was deleted."""

    deleted: bool
