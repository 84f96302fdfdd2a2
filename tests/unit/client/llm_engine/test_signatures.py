"""The classes take what LLM Engine's reference says, by name, in its order, with its defaults."""

import inspect
from typing import Any

import pytest

from llm_worker_client import Completion, File, FineTune, Model

REQUIRED = "required"
NONE: dict[str, Any] = {}

CREATE: dict[str, Any] = {
    "model": REQUIRED,
    "prompt": REQUIRED,
    "max_new_tokens": 20,
    "temperature": 0.2,
    "stop_sequences": None,
    "return_token_log_probs": False,
    "presence_penalty": None,
    "frequency_penalty": None,
    "top_k": None,
    "top_p": None,
    "include_stop_str_in_output": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "timeout": 300,
    "stream": False,
    "request_headers": None,
}
BATCH: dict[str, Any] = {
    "output_data_path": REQUIRED,
    "model_config": REQUIRED,
    "content": None,
    "input_data_path": None,
    "data_parallelism": 1,
    "max_runtime_sec": 86400,
    "labels": None,
    "priority": None,
    "use_v2": False,
    "tool_config": None,
    "cpus": None,
    "gpus": None,
    "memory": None,
    "gpu_type": None,
    "storage": None,
    "request_headers": None,
}
TUNE: dict[str, Any] = {
    "model": REQUIRED,
    "training_file": REQUIRED,
    "validation_file": None,
    "hyperparameters": None,
    "wandb_config": None,
    "suffix": None,
}
MODEL: dict[str, Any] = {
    "name": REQUIRED,
    "model": REQUIRED,
    "inference_framework_image_tag": REQUIRED,
    "source": "hugging_face",
    "inference_framework": "vllm",
    "num_shards": 1,
    "quantize": None,
    "checkpoint_path": None,
    "max_model_len": None,
    "cpus": None,
    "memory": None,
    "storage": None,
    "gpus": None,
    "nodes_per_worker": 1,
    "min_workers": 0,
    "max_workers": 1,
    "per_worker": 2,
    "endpoint_type": "streaming",
    "gpu_type": None,
    "high_priority": False,
    "post_inference_hooks": None,
    "default_callback_url": None,
    "public_inference": True,
    "labels": None,
    "request_headers": None,
}
# Those of create, all but the name left as they are.
ONLY_CREATED = ("inference_framework", "max_model_len", "nodes_per_worker")
UPDATE = {name: None for name in MODEL if name not in ONLY_CREATED} | {"name": REQUIRED}

TABLE: list[tuple[Any, dict[str, Any]]] = [
    (Completion.create, CREATE),
    (Completion.acreate, CREATE),
    (Completion.batch_create, BATCH),
    (FineTune.create, TUNE),
    (FineTune.get, {"fine_tune_id": REQUIRED}),
    (FineTune.get_events, {"fine_tune_id": REQUIRED}),
    (FineTune.list, NONE),
    (FineTune.cancel, {"fine_tune_id": REQUIRED}),
    (Model.create, MODEL),
    (Model.update, UPDATE),
    (Model.get, {"model": REQUIRED, "request_headers": None}),
    (Model.list, {"request_headers": None}),
    (Model.delete, {"model_endpoint_name": REQUIRED, "request_headers": None}),
    (Model.download, {"model_name": REQUIRED, "download_format": "hugging_face"}),
    (File.upload, {"file": REQUIRED}),
    (File.get, {"file_id": REQUIRED}),
    (File.download, {"file_id": REQUIRED}),
    (File.list, NONE),
    (File.delete, {"file_id": REQUIRED}),
]


@pytest.mark.parametrize(
    ("method", "expected"), TABLE, ids=[method.__qualname__ for method, _ in TABLE]
)
def test_a_method_takes_what_the_reference_says(method: Any, expected: dict[str, Any]) -> None:
    found = dict(inspect.signature(method).parameters)
    if method in {Completion.create, Completion.acreate}:
        # Of keys that the reference leaves out.
        assert found.pop("more").kind is inspect.Parameter.VAR_KEYWORD
    assert [
        (name, REQUIRED if each.default is inspect.Parameter.empty else each.default)
        for name, each in found.items()
    ] == list(expected.items())
    assert {each.kind for each in found.values()} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_only_acreate_is_asynchronous() -> None:
    asynchronous = [method for method, _ in TABLE if inspect.iscoroutinefunction(method)]
    assert asynchronous == [Completion.acreate]
