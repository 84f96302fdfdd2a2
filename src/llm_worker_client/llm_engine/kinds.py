"""LLM Engine's enumerations, and the base classes of its types."""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


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
