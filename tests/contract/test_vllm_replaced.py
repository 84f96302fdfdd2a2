"""The parts of foreign objects that the worker replaces (worker/engine/seam/patches.py).

Each row's part is still there, is used in the way that the worker counts on, and is still needed.
If a test of the last kind fails, vLLM has mended what the row is for: see whether the worker can do
without it.
"""

import asyncio
import inspect
import re
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import vllm.platforms
from packaging.version import Version
from prometheus_client import REGISTRY, Counter
from pydantic import ValidationError
from support.effort import seconds
from vllm.config import ModelConfig
from vllm.engine import arg_utils
from vllm.entrypoints.anthropic import api_router
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion import serving as chats
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.openai.completion import serving as completions
from vllm.entrypoints.openai.responses import serving as responses
from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.exceptions import VLLMError
from vllm.model_executor.layers.attention import attention
from vllm.model_executor.models import registry
from vllm.renderers import base
from vllm.renderers.hf import HfRenderer
from vllm.utils.async_utils import make_async
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.metrics import loggers, prometheus
from vllm.v1.sample.ops.logprobs import batched_count_greater_than
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from worker.engine.options import Options
from worker.engine.run.requests.refusals import QUOTING_LOGGERS, sanitized
from worker.engine.run.requests.texts import keep_a_thread_free, mark
from worker.engine.seam import patches
from worker.engine.seam.cpu_worker import CPUWorker
from worker.engine.seam.locations import find
from worker.engine.seam.patches import PATCHES, Patch


def parameters(function: Any, count: int) -> list[str]:
    return list(inspect.signature(function).parameters)[:count]


# What generates, which worker/engine/run/grammar/gate.py replaces:


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


# What adds requests, which worker/engine/run/requests/turns.py replaces:


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


# What runs in threads, which worker/engine/run/requests/texts.py replaces:


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


# What looks at a model's class elsewhere, which worker/engine/seam/inspection.py replaces:


def test_vllm_looks_at_a_models_class_by_one_function_of_its_registry() -> None:
    """Else each first start on a machine imports vLLM once more, which takes seconds."""
    assert parameters(getattr(registry, patches.INSPECT.name), 2) == ["fn"]
    assert f"{patches.INSPECT.name}(" in inspect.getsource(
        registry._LazyRegisteredModel.inspect_model_cls
    )


# All rows:


def named(row: Patch) -> str:
    return f"{row.owner}.{row.name}"


@pytest.mark.parametrize("row", PATCHES, ids=named)
def test_what_a_row_replaces_is_there_and_so_is_what_takes_its_place(row: Patch) -> None:
    try:
        owner = resolve_name(row.owner)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{row.owner} has moved ({error}): mend its row in seam/patches.py")
    # Objects alone have what their class sets when it makes them.
    there = hasattr(owner, row.name) or f"self.{row.name} = " in inspect.getsource(owner)
    assert there, f"{row.owner} has no {row.name} any more: mend its row in seam/patches.py"
    assert resolve_name(row.by)
    assert row.until is None or Version(row.until) < Version(patches.NEWEST)


def test_nothing_else_in_the_engine_replaces_a_method_or_sets_what_has_a_changing_name() -> None:
    """A method that is set without a row is a mistake that mypy finds; these would hide it."""
    engine = Path(patches.__file__).parents[1]
    replaces = re.compile(r"\bsetattr\(|ignore\[method-assign\]|\.__class__ = ")
    found = {path.name for path in engine.rglob("*.py") if replaces.search(path.read_text())}
    assert found == {"patches.py"}


def test_every_row_is_used_but_those_of_what_the_owner_lets_others_change() -> None:
    engine = Path(patches.__file__).parents[1]
    sources = [path.read_text() for path in engine.rglob("*.py") if path.name != "patches.py"]
    names = {name for name, value in vars(patches).items() if isinstance(value, Patch)}
    unused = {name for name in names if not any(f"{name}.replace" in text for text in sources)}
    assert unused == {"COMPILATION", "LOG", "METRICS", "SEEDS"}


def test_the_worker_for_cpus_overrides_what_its_rows_say() -> None:
    rows = [row for row in PATCHES if row.by.endswith(":CPUWorker")]
    overridden = {name for name, value in vars(CPUWorker).items() if inspect.isfunction(value)}
    assert overridden == {row.name for row in rows}


# Whether a patch is still needed:


def takes_minutes() -> bool:
    # Read anew, since another test of this process may have replaced it.
    module = runpy.run_path(resolve_name(patches.SANITIZE.owner).__file__)
    message, original = "/a" * 1_500, module[patches.SANITIZE.name]
    return seconds(lambda: original(message)) > 20 * seconds(lambda: sanitized(message))


def refuses_a_written_list() -> bool:
    call = {"function": {"name": "describe", "arguments": "[1]"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = ChatCompletionResponse.model_validate(
        {"model": "demo", "choices": [choice], "usage": usage}
    )
    try:
        object.__new__(AnthropicServingMessages).messages_full_converter(answer)
    except ValidationError:
        return True
    return False


def compiles_without_a_limit() -> bool:
    source = inspect.getsource(XgrammarBackend.compile_grammar)
    return "ctx = self.compiler.compile_json_schema(" in source


def answers_errors_itself() -> bool:
    arguments = Options().parse({"MODEL": "org/name"}).arguments.vllm
    app = find("build_app")(arguments, ("generate",), None)
    return VLLMError in app.exception_handlers


def starts_an_interpreter() -> bool:
    return bool(registry._SUBPROCESS_COMMAND[0] == sys.executable)


def takes_the_metrics_of_others() -> bool:
    assert "unregister_vllm_metrics()" in inspect.getsource(loggers.PrometheusStatLogger.__init__)
    others = Counter("vllm:of_another", "Requests of another engine.")
    prometheus.unregister_vllm_metrics()
    if REGISTRY.get_sample_value("vllm:of_another_total") is None:
        return True
    REGISTRY.unregister(others)
    return False


def logs_what_was_sent() -> bool:
    chat_utils = sys.modules[find("ChatTemplateResolutionError").__module__]
    assert chat_utils.__name__ in QUOTING_LOGGERS
    quotes = "Skipping multimodal part '%s'" in inspect.getsource(chat_utils)
    refusals = 'logger.exception("Error in create_messages: %s", e)'
    return quotes and refusals in inspect.getsource(api_router)


def compiles_when_eager() -> bool:
    return hasattr(batched_count_greater_than, "_torchdynamo_orig_callable")


def turns_generators_back() -> bool:
    with pytest.raises(RuntimeError, match="does not use offset"):
        torch.Generator("cpu").set_offset(0)
    source = Path(inspect.getfile(GPUModelRunner)).read_text()
    return "gen.set_offset(gen.get_offset() - 4)" in source


NEEDED: dict[Patch, Callable[[], bool]] = {
    patches.COMPILATION: compiles_when_eager,
    patches.EXCEPTION_HANDLERS: answers_errors_itself,
    patches.GENERATE: compiles_without_a_limit,
    patches.INSPECT: starts_an_interpreter,
    patches.LOG: logs_what_was_sent,
    patches.METRICS: takes_the_metrics_of_others,
    patches.SANITIZE: takes_minutes,
    patches.SEEDS: turns_generators_back,
    patches.TO_MESSAGES: refuses_a_written_list,
}
INSTALLED = Version(Version(vllm.__version__).public)


def is_for(row: Patch) -> bool:
    """Whether a row is for the installed vLLM."""
    release = Version(f"{INSTALLED.major}.{INSTALLED.minor}")
    return row.until is None or release <= Version(row.until)


@pytest.mark.parametrize("row", NEEDED, ids=named)
def test_a_patch_is_needed_where_its_row_says_so(row: Patch) -> None:
    if is_for(row):
        assert NEEDED[row](), f"{named(row)} may be mended: try without, or set its `until`"


@pytest.mark.parametrize("row", [row for row in PATCHES if row not in NEEDED], ids=named)
def test_a_patch_whose_need_no_test_shows_was_checked_with_the_installed_vllm(row: Patch) -> None:
    """Those need an engine, or are there for vLLM's way to work rather than for a defect."""
    newest = Version(patches.NEWEST)
    assert INSTALLED.release[:2] <= newest.release, (
        f"{named(row)}: {row.why} Look whether vLLM {INSTALLED} still does, "
        f"and once all of these were looked at, raise NEWEST in seam/patches.py"
    )
