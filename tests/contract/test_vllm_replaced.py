"""Methods of vLLM's objects that the worker replaces: vLLM still has them, and calls them itself.

Each is replaced on an object, so that whoever calls it on that object gets the worker's.
"""

import asyncio
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import vllm.platforms
from vllm.config import ModelConfig
from vllm.engine import arg_utils
from vllm.entrypoints.openai.chat_completion import serving as chats
from vllm.entrypoints.openai.completion import serving as completions
from vllm.entrypoints.openai.responses import serving as responses
from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.model_executor.layers.attention import attention
from vllm.model_executor.models import registry
from vllm.renderers import base
from vllm.renderers.hf import HfRenderer
from vllm.utils.async_utils import make_async
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor

from worker.engine.run.requests.texts import keep_a_thread_free, mark
from worker.engine.seam.inspection import ELSEWHERE


def parameters(function: Any, count: int) -> list[str]:
    return list(inspect.signature(function).parameters)[:count]


# What generates, which worker/engine/grammar/gate.py replaces:


@pytest.mark.parametrize(
    "part", [completions.OpenAIServingCompletion.beam_search, chats, completions, responses]
)
def test_vllms_server_generates_through_the_client(part: Any) -> None:
    """Else structured outputs of its routes reach the core untried."""
    source = inspect.getsource(part)
    assert "self.engine_client.generate(" in source
    assert not re.findall(r"engine_client\.(?!generate\()\w*generate\w*\(", source)


def test_methods_of_a_client_can_be_replaced_on_it_and_have_their_parameters() -> None:
    assert parameters(AsyncLLM.generate, 3) == ["self", "prompt", "sampling_params"]
    assert inspect.isasyncgenfunction(AsyncLLM.generate)
    client: Any = object.__new__(AsyncLLM)
    try:
        client.generate = client.add_request = None
    finally:
        # Its own end would stop what it never started.
        vars(client).clear()


# What adds requests, which worker/engine/requests/turns.py replaces:


@pytest.mark.parametrize("method", [AsyncLLM.generate, AsyncLLM.encode])
def test_what_vllm_generates_and_embeds_it_adds_by_one_method(method: Any) -> None:
    """Else long requests take no turns."""
    assert re.search(
        r"await self\.add_request\(\s*request_id,\s*prompt,", inspect.getsource(method)
    )


def test_add_request_begins_with_the_callers_id() -> None:
    assert parameters(AsyncLLM.add_request, 3) == ["self", "request_id", "prompt"]
    assert inspect.iscoroutinefunction(AsyncLLM.add_request)
    # The states of requests have it, too.
    source = inspect.getsource(InputProcessor.assign_request_id)
    assert "request.external_req_id = request.request_id" in source


# What runs in threads, which worker/engine/requests/texts.py replaces:


def test_vllm_renders_in_a_shared_executor_of_as_many_threads_as_the_worker_reads() -> None:
    """Else long texts hold up others."""
    source = inspect.getsource(base.BaseRenderer.__init__)
    assert "pool_workers = config.model_config.renderer_num_workers" in source
    assert "renderer_num_workers" in ModelConfig.__dataclass_fields__
    assert "self._executor = " in source
    assert re.search(r"make_async\(\s*self\._tokenize_prompt, executor=self\._executor", source)
    assert "executor=self._executor" in inspect.getsource(HfRenderer.__init__)
    assert "renderer._executor" in inspect.getsource(PoolingIOProcessor.__init__)


async def test_vllm_submits_what_it_renders_to_the_executor_whose_method_is_replaced() -> None:
    executor: Any = getattr(base, "_SwappableExecutor", ThreadPoolExecutor)(max_workers=2)
    at_once, submitted = executor.submit, []

    def submit(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        submitted.append(function)
        return at_once(function, *args, **kwargs)

    executor.submit = submit
    keep_a_thread_free(executor, 2)
    length = make_async(len, executor=executor)

    async def long() -> Any:
        mark(long=True)
        return await length("abc")

    assert [await length("ab"), await asyncio.create_task(long())] == [2, 3]
    assert len(submitted) == 2
    executor.shutdown()


# The platform, which worker/engine/machine.py lets stand for a GPU's:


def test_all_modules_ask_one_object_about_the_platform() -> None:
    platform = vllm.platforms.current_platform
    assert arg_utils.current_platform is attention.current_platform is platform


def test_cudas_platform_has_no_rule_of_its_own_for_the_sizes_of_blocks() -> None:
    """Else plans for GPUs follow a rule that GPUs don't."""
    source = (Path(vllm.platforms.__file__).parent / "cuda.py").read_text()
    assert "def check_and_update_config" in source
    assert not re.findall(r"update_block_size_for_backend|block_size *=|mamba", source)


# What looks at a model's class elsewhere, which worker/engine/inspection.py replaces:


def test_vllm_looks_at_a_models_class_by_one_function_of_its_registry() -> None:
    """Else each first start on a machine imports vLLM once more, which takes seconds."""
    assert parameters(getattr(registry, ELSEWHERE), 2) == ["fn"]
    assert f"{ELSEWHERE}(" in inspect.getsource(registry._LazyRegisteredModel.inspect_model_cls)
