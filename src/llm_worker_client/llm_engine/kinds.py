"""The values that LLM Engine's types choose from, and what its types have in common."""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class LLMSource(StrEnum):
    """Where weights come from."""

    HUGGING_FACE = "hugging_face"


class LLMInferenceFramework(StrEnum):
    """What serves a model: here always vLLM."""

    DEEPSPEED = "deepspeed"
    TEXT_GENERATION_INFERENCE = "text_generation_inference"
    VLLM = "vllm"
    LIGHTLLM = "lightllm"
    TENSORRT_LLM = "tensorrt_llm"


class Quantization(StrEnum):
    """Methods of quantization."""

    BITSANDBYTES = "bitsandbytes"
    AWQ = "awq"


class ModelEndpointType(StrEnum):
    """Kinds of endpoints."""

    STREAMING = "streaming"


class PostInferenceHooks(StrEnum):
    """What can follow an answer."""

    CALLBACK = "callback"


class GpuType(StrEnum):
    """Types of GPUs."""

    NVIDIA_TESLA_T4 = "nvidia-tesla-t4"
    NVIDIA_AMPERE_A10 = "nvidia-ampere-a10"
    NVIDIA_AMPERE_A100 = "nvidia-ampere-a100"
    NVIDIA_AMPERE_A100E = "nvidia-ampere-a100e"
    NVIDIA_HOPPER_H100 = "nvidia-hopper-h100"
    NVIDIA_HOPPER_H100_1G_20GB = "nvidia-hopper-h100-1g20gb"
    NVIDIA_HOPPER_H100_3G_40GB = "nvidia-hopper-h100-3g40gb"


class BatchJobStatus(StrEnum):
    """How far a fine-tune is."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"
    UNDEFINED = "UNDEFINED"
    TIMEOUT = "TIMEOUT"


class BatchCompletionsJobStatus(StrEnum):
    """How far a batch is; the names are LLM Engine's."""

    Queued = "queued"
    Running = "running"
    Completed = "completed"
    Failed = "failed"
    Cancelled = "cancelled"
    Unknown = "unknown"


class Data(BaseModel):
    """Base of what is returned. ``json`` and ``dict`` are those of LLM Engine's own models."""

    def json(self, **options: Any) -> str:
        """Return the values as JSON, in one line; the options are those of ``json.dumps``."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), **options)

    def dict(self) -> dict[str, Any]:  # type: ignore[override]  # scripts read it
        """Return the values by name."""
        return self.model_dump(by_alias=True)


class Asked(Data):
    """Base of what is sent; values that are not named here are sent, too: the worker checks."""

    model_config = ConfigDict(extra="allow")
