"""The log lines of a started engine."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine

pytestmark = pytest.mark.model


def parts(line: str) -> dict[str, str]:
    return dict(part.split(": ", 1) for part in line.split("; "))


def test_one_line_summarizes_the_engine(engine: "InProcessEngine", settings: Settings) -> None:
    from worker.engine.summary import summary  # noqa: PLC0415 - it imports vLLM

    arguments, config = engine._arguments, engine._client.vllm_config
    slots = config.scheduler_config.max_num_seqs
    shown = parts(summary(arguments, config, settings.max_concurrency, slots))
    tokens = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    assert tokens > 100_000
    versions = shown.pop("versions")
    assert shown == {
        "model": Path(settings.model_name).name,
        "from": str(Path(settings.model_name).resolve()),
        "revision": "none",
        "dtype": "float32",
        "quantization": "none",
        "context": "1024 tokens",
        "parallelism": "tensor 1, pipeline 1, data 1",
        "KV cache": f"{tokens} tokens",
        "concurrency": f"300 jobs, {slots} in the engine",
    }
    for package in ("python 3.", "vllm", "torch 2.", "runpod 1."):
        assert package in versions


def test_a_number_of_jobs_that_the_worker_chose_is_explained(engine: "InProcessEngine") -> None:
    from worker.engine.summary import summary  # noqa: PLC0415 - it imports vLLM

    shown = parts(summary(engine._arguments, engine._client.vllm_config, "auto", 128))
    assert shown["concurrency"] == "160 jobs (auto: 128 in the engine, 32 waiting)"


def test_every_automatic_choice_is_logged_with_its_reason(engine: "InProcessEngine") -> None:
    from worker.engine.options.automatic import CPU_EXPORTS  # noqa: PLC0415 - it imports vLLM
    from worker.engine.summary import defaults  # noqa: PLC0415 - likewise

    shown = {default.name: str(default) for default in defaults(engine._arguments)}
    assert shown.keys() - CPU_EXPORTS.keys() == {
        "DTYPE",
        "ENFORCE_EAGER",
        "DISTRIBUTED_EXECUTOR_BACKEND",
        "RENDERER_NUM_WORKERS",
        "SERVED_MODEL_NAME",
        "STRUCTURED_OUTPUTS_CONFIG",
        "TOKENIZER",
        "WORKER_CLS",
    }
    name = engine.model.names[0]
    assert shown["SERVED_MODEL_NAME"] == f"SERVED_MODEL_NAME={name} (the last part of MODEL_NAME)"
    assert shown["TOKENIZER"] == f"TOKENIZER={name} (the model's own)"
