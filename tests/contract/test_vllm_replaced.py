"""Tests of the patches in worker/engine/seam/patches.py, one row per replaced part.

The tests check that the part still exists, that vLLM uses it as the worker expects, and that the
patch is still needed. If a test of the last kind fails, vLLM has fixed the problem: check whether
the worker works without the patch.
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
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.platforms
from packaging.version import Version
from prometheus_client import REGISTRY, Counter
from pydantic import ValidationError
from support.effort import cpu_seconds
from transformers import AutoTokenizer
from transformers.utils import import_utils
from vllm.config import ModelConfig
from vllm.engine import arg_utils
from vllm.entrypoints.anthropic import api_router
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion import serving as chats
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from vllm.entrypoints.openai.completion import serving as completions
from vllm.entrypoints.openai.responses import serving as responses
from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.exceptions import VLLMError
from vllm.model_executor.layers.attention import attention
from vllm.model_executor.models import registry
from vllm.parser.abstract_parser import DelegatingParser
from vllm.renderers import base
from vllm.renderers.hf import HfRenderer, parse_chat_messages
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
from vllm.utils.async_utils import make_async
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine import logprobs as engine_logprobs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient, DPAsyncMPClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics import loggers, prometheus
from vllm.v1.metrics.stats import RequestStateStats
from vllm.v1.sample.ops.logprobs import batched_count_greater_than
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from worker.engine.options import Options
from worker.engine.run.corrections import (
    QUOTING_LOGGERS,
    remember_token_texts,
    sanitize_message,
)
from worker.engine.run.requests.long_requests import (
    mark_if_long,
    reserve_thread_for_short_texts,
)
from worker.engine.seam import patches
from worker.engine.seam.cpu_worker import CPUWorker
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import PATCHES, Patch


def parameters(function: Any, count: int) -> list[str]:
    return list(inspect.signature(function).parameters)[:count]


# Generation, which worker/engine/run/grammar/gate.py replaces:


@pytest.mark.parametrize(
    "part", [completions.OpenAIServingCompletion.beam_search, chats, completions, responses]
)
def test_vllms_server_generates_through_the_client(part: Any) -> None:
    """Otherwise structured outputs of its routes reach the core without a trial compilation."""
    source = inspect.getsource(part)
    assert "self.engine_client.generate(" in source
    assert not re.findall(r"engine_client\.(?!generate\()\w*generate\w*\(", source)


def test_methods_of_a_client_can_be_replaced_and_have_the_expected_parameters() -> None:
    assert parameters(AsyncLLM.generate, 3) == ["self", "prompt", "sampling_params"]
    assert inspect.isasyncgenfunction(AsyncLLM.generate)
    client: Any = object.__new__(AsyncLLM)
    try:
        client.generate = client.add_request = None
    finally:
        # The client was never started, so its finalizer must not stop anything.
        vars(client).clear()


# Adding requests, which worker/engine/run/requests/long_requests.py replaces:


@pytest.mark.parametrize("method", [AsyncLLM.generate, AsyncLLM.encode])
def test_generate_and_encode_add_requests_with_add_request(method: Any) -> None:
    """Otherwise long lists of requests block short requests."""
    assert re.search(
        r"await self\.add_request\(\s*request_id,\s*prompt,\s*\w+_params,",
        inspect.getsource(method),
    )


def test_the_first_parameters_of_add_request_are_the_id_of_the_caller_and_the_request() -> None:
    assert parameters(AsyncLLM.add_request, 4) == ["self", "request_id", "prompt", "params"]
    assert inspect.iscoroutinefunction(AsyncLLM.add_request)
    # The states of requests also contain this id.
    source = inspect.getsource(InputProcessor.assign_request_id)
    assert "request.external_req_id = request.request_id" in source


def test_a_request_for_many_choices_sends_a_request_of_each_to_the_core() -> None:
    """Otherwise the choices of one request take every slot."""
    source = inspect.getsource(AsyncLLM)
    assert "= parent_request.get_child_info(" in source
    assert {*re.findall(r"engine_core\.(\w*add_request\w*)\(", source)} == {"add_request_async"}
    for connection in (AsyncMPClient, DPAsyncMPClient):
        assert parameters(connection.add_request_async, 3) == ["self", "request"]
    # A choice has the caller's id, and its state exists before the choice is sent.
    assert "external_req_id" in EngineCoreRequest.__struct_fields__
    assert source.index("self.output_processor.add_request(") < source.index(".add_request_async(")


# The collector of outputs, which worker/engine/run/requests/due_outputs.py replaces:


def test_a_client_collects_each_requests_outputs_and_reads_them_until_the_last() -> None:
    """Otherwise the outputs of a stream become due without a reader, or are read one by one."""
    source = inspect.getsource(AsyncLLM)
    assert "RequestOutputCollector(params.output_kind, request.request_id)" in source
    generate = inspect.getsource(AsyncLLM.generate)
    assert "out = q.get_nowait() or await q.get()" in generate
    assert "finished = out.finished" in generate
    assert "q.close()" in generate
    assert not re.findall(r"\bq\.(?!get_nowait|get\b|close|request_id)\w+", generate)
    processor = inspect.getsource(OutputProcessor)
    assert {*re.findall(r"\bqueue\.(\w+)\(", processor)} == {"put"}
    # vLLM merges the outputs of a stream that wait, as ``DueOutputs`` does.
    assert "self.output.add(output, aggregate=self.aggregate)" in inspect.getsource(
        RequestOutputCollector
    )


# The dict of unfinished requests, which worker/engine/run/requests/gpu_time.py replaces:


def test_every_request_enters_and_leaves_the_dict_of_unfinished_requests() -> None:
    """Otherwise requests are charged for too little or too much time."""
    source = inspect.getsource(OutputProcessor)
    assert re.findall(r"request_states\[\w+\] = ", source) == ["request_states[request_id] = "]
    assert {*re.findall(r"request_states\.(\w+)\(", source)} == {"get", "items", "pop", "values"}
    assert "del self.request_states" not in source
    # An output is processed before its caller gets it, so that the request has left by then.
    process = inspect.getsource(OutputProcessor.process_outputs)
    assert not inspect.iscoroutinefunction(OutputProcessor.process_outputs)
    assert "self._finish_request(req_state)" in process


def test_the_state_of_a_request_has_the_figures_of_its_receipt() -> None:
    names = {"num_generation_tokens", "scheduled_ts", "first_token_ts"}
    if Version(vllm.__version__) >= Version("0.30"):
        names.add("num_preemptions")
    assert names <= RequestStateStats.__dataclass_fields__.keys()
    # vLLM collects them for every client with a logger of statistics, and the worker adds one.
    assert "self.log_stats = log_stats or has_custom_loggers" in inspect.getsource(AsyncLLM)


# Work in threads, which worker/engine/run/requests/long_requests.py replaces:


def test_vllm_renders_in_a_shared_executor_with_the_configured_number_of_threads() -> None:
    """Otherwise long prompts delay other requests."""
    source = inspect.getsource(base.BaseRenderer.__init__)
    assert "pool_workers = config.model_config.renderer_num_workers" in source
    assert "renderer_num_workers" in ModelConfig.__dataclass_fields__
    assert "self._executor = " in source
    assert re.search(r"make_async\(\s*self\._tokenize_prompt, executor=self\._executor", source)
    assert "executor=self._executor" in inspect.getsource(HfRenderer.__init__)
    assert "renderer._executor" in inspect.getsource(PoolingIOProcessor.__init__)


async def test_vllm_renders_with_the_replaced_submit_method_of_its_executor() -> None:
    executor: Any = getattr(base, "_SwappableExecutor", ThreadPoolExecutor)(max_workers=2)
    original_submit, submitted = executor.submit, []

    def submit(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        submitted.append(function)
        return original_submit(function, *args, **kwargs)

    executor.submit = submit
    reserve_thread_for_short_texts(executor, 2)
    length = make_async(len, executor=executor)

    async def long() -> Any:
        mark_if_long(long=True)
        return await length("abc")

    assert [await length("ab"), await asyncio.create_task(long())] == [2, 3]
    assert len(submitted) == 2
    executor.shutdown()


# The texts of tokens, which worker/engine/run/corrections.py remembers:


class CountingTokenizer:
    """Counts the calls of ``decode`` of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.calls = 0

    def decode(self, token_ids: list[int]) -> str:
        self.calls += 1
        text: str = self.tokenizer.decode(token_ids)
        return text

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@pytest.fixture
def counting_tokenizer(demo_model: Path) -> CountingTokenizer:
    return CountingTokenizer(AutoTokenizer.from_pretrained(demo_model))


def original_of(row: Patch) -> Any:
    """Return the part that a patch replaces, also if it is replaced in this process."""
    module, _, owner = row.owner.partition(":")
    # Imports the module again.
    names = runpy.run_path(resolve_name(module).__file__)
    return getattr(names[owner], row.name) if owner else names[row.name]


def test_each_token_is_decoded_once_and_its_text_is_vllms(
    counting_tokenizer: CountingTokenizer,
) -> None:
    tokenizer = counting_tokenizer
    remember_token_texts()
    token_texts = engine_logprobs.convert_ids_list_to_tokens
    ids = [*range(len(tokenizer.tokenizer)), *range(100)]
    assert token_texts(tokenizer, []) == []
    texts = token_texts(tokenizer, ids)
    assert tokenizer.calls == len(tokenizer.tokenizer)
    assert texts == token_texts(tokenizer, ids) == original_of(patches.TOKEN_TEXTS)(tokenizer, ids)


def test_the_texts_of_incomplete_characters_are_vllms_and_decoded_less(
    counting_tokenizer: CountingTokenizer,
) -> None:
    tokenizer = counting_tokenizer
    remember_token_texts()
    processor: Any = SimpleNamespace(tokenizer=tokenizer)
    original = original_of(patches.INCOMPLETE_TEXT)
    correct = engine_logprobs.LogprobsProcessor._correct_decoded_token
    ids = range(len(tokenizer.tokenizer))
    parts = [id for id in ids if tokenizer.decode([id]).endswith("\N{REPLACEMENT CHARACTER}")]
    # Characters of two to four bytes, after others and after random parts.
    choose = Random(1)
    contexts: list[list[int]] = [[], *([id] for id in parts)]
    for text in ("aé", "€€", "é😀", "😀"):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        contexts += [encoded[:end][-4:] for end in range(1, len(encoded) + 1)]
    contexts += [choose.choices(parts, k=choose.randint(2, 4)) for _ in range(50)]
    contexts += [choose.choices(ids, k=4) for _ in range(50)]
    counts, answers = [], []
    for function in (original, correct):
        tokenizer.calls = 0
        answers.append([function(processor, id, context) for context in contexts for id in parts])
        counts.append(tokenizer.calls)
    assert answers[0] == answers[1]
    assert {"é", "€", "😀", ""} <= {*answers[0]}
    assert counts[0] > 1.5 * counts[1]
    # After a whole character, a part of one can't be the rest of it.
    whole = tokenizer.encode("a", add_special_tokens=False)
    tokenizer.calls = 0
    assert [correct(processor, id, whole) for id in parts] == [""] * len(parts)
    assert tokenizer.calls == 0


# The platform object, which worker/engine/machine.py replaces by a GPU's platform:


def test_all_modules_share_one_platform_object() -> None:
    platform = vllm.platforms.current_platform
    assert arg_utils.current_platform is attention.current_platform is platform


def test_the_cuda_platform_has_no_block_size_rules_of_its_own() -> None:
    """Otherwise plans for GPUs use other block sizes than the GPUs."""
    source = (Path(vllm.platforms.__file__).parent / "cuda.py").read_text()
    assert "def check_and_update_config" in source
    assert not re.findall(r"update_block_size_for_backend|block_size *=|mamba", source)


# The inspection of a model's class, which worker/engine/seam/imports.py replaces:


def test_vllm_inspects_model_classes_with_one_function_of_its_registry() -> None:
    """Otherwise the first startup on a machine imports vLLM a second time, which takes seconds."""
    assert parameters(getattr(registry, patches.INSPECT.name), 2) == ["fn"]
    assert f"{patches.INSPECT.name}(" in inspect.getsource(
        registry._LazyRegisteredModel.inspect_model_cls
    )


# All rows:


def patch_name(row: Patch) -> str:
    return f"{row.owner}.{row.name}"


@pytest.mark.parametrize("row", PATCHES, ids=patch_name)
def test_the_part_of_a_patch_and_its_replacement_exist(row: Patch) -> None:
    try:
        owner = resolve_name(row.owner)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{row.owner} has moved ({error}): correct its row in seam/patches.py")
    # Attributes that a constructor sets exist on instances only, not on the class.
    assigned = rf"self\.{row.name}(: .+)? = "
    exists = hasattr(owner, row.name) or re.search(assigned, inspect.getsource(owner))
    assert exists, f"{row.owner} has no {row.name} any more: correct its row in seam/patches.py"
    assert resolve_name(row.replacement)
    assert row.last_release is None or Version(row.last_release) < Version(patches.NEWEST_RELEASE)


def test_no_other_module_of_the_engine_replaces_methods_or_sets_dynamic_attributes() -> None:
    """mypy reports methods that are assigned without a patch, but not these forms."""
    engine = Path(patches.__file__).parents[1]
    replaces = re.compile(r"\bsetattr\(|ignore\[method-assign\]|\.__class__ = ")
    found = {path.name for path in engine.rglob("*.py") if replaces.search(path.read_text())}
    assert found == {"patches.py"}


def test_every_patch_is_applied_except_those_that_use_an_extension_point() -> None:
    engine = Path(patches.__file__).parents[1]
    sources = [path.read_text() for path in engine.rglob("*.py") if path.name != "patches.py"]
    names = {name for name, value in vars(patches).items() if isinstance(value, Patch)}
    unused = {name for name in names if not any(f"{name}.replace" in text for text in sources)}
    assert unused == {"COMPILATION", "LOG", "METRICS", "SEEDS"}


def test_the_cpu_worker_overrides_exactly_the_methods_of_its_patches() -> None:
    rows = [row for row in PATCHES if row.replacement.endswith(":CPUWorker")]
    overridden = {name for name, value in vars(CPUWorker).items() if inspect.isfunction(value)}
    assert overridden == {row.name for row in rows}


# Whether a patch is still needed:


def sanitizes_slowly() -> bool:
    # Import the module again, because another test of this process may have replaced the function.
    module = runpy.run_path(resolve_name(patches.SANITIZE.owner).__file__)
    message, original = "/a" * 1_500, module[patches.SANITIZE.name]
    worker_s = cpu_seconds(lambda: sanitize_message(message))
    return cpu_seconds(lambda: original(message)) > 20 * worker_s


def decodes_tokens_again() -> bool:
    assert "convert_ids_list_to_tokens(" in inspect.getsource(engine_logprobs.LogprobsProcessor)
    tokenizer = CountingTokenizer(SimpleNamespace(decode=str))
    original_of(patches.TOKEN_TEXTS)(tokenizer, [5] * 10)
    return tokenizer.calls == 10


def decodes_incomplete_characters_again() -> bool:
    assert "_correct_decoded_token(" in inspect.getsource(engine_logprobs.LogprobsProcessor)
    tokenizer = CountingTokenizer(SimpleNamespace(decode=lambda _: "\N{REPLACEMENT CHARACTER}"))
    original_of(patches.INCOMPLETE_TEXT)(SimpleNamespace(tokenizer=tokenizer), 5, [1, 2, 3, 4])
    return tokenizer.calls > 2


def refuses_lists_as_tool_input() -> bool:
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


def withholds_text() -> bool:
    tokenizer = SimpleNamespace(get_vocab=dict)
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], tools=tools)
    parser_class: Any = type(
        "Streaming", (DelegatingParser,), {"tool_parser_cls": Hermes2ProToolParser}
    )
    parser = parser_class(tokenizer, request.tools)
    parse_delta = original_of(patches.PARSE_DELTA)
    return parse_delta(parser, "<", [1], request, prompt_token_ids=[0], finished=True) is None


def compiles_without_a_limit() -> bool:
    source = inspect.getsource(XgrammarBackend.compile_grammar)
    return "ctx = self.compiler.compile_json_schema(" in source


def handles_errors_itself() -> bool:
    arguments = Options().parse_engine_settings({"MODEL": "org/name"}).arguments.vllm_args
    app = import_from_vllm("build_app")(arguments, ("generate",), None)
    return VLLMError in app.exception_handlers


def starts_an_interpreter() -> bool:
    return bool(registry._SUBPROCESS_COMMAND[0] == sys.executable)


def unregisters_other_metrics() -> bool:
    assert "unregister_vllm_metrics()" in inspect.getsource(loggers.PrometheusStatLogger.__init__)
    others = Counter("vllm:of_another", "Requests of another engine.")
    prometheus.unregister_vllm_metrics()
    if REGISTRY.get_sample_value("vllm:of_another_total") is None:
        return True
    REGISTRY.unregister(others)
    return False


def names_adapters_in_labels() -> bool:
    source = inspect.getsource(loggers.PrometheusStatLogger)
    return "if self.gauge_lora_info is not None:" in source and "lora_info_labels" in source


def logs_request_content() -> bool:
    parser = sys.modules[parse_chat_messages.__module__]
    assert parser.logger.name.startswith(QUOTING_LOGGERS)
    quotes = "Skipping multimodal part '%s'" in inspect.getsource(parser)
    refusals = 'logger.exception("Error in create_messages: %s", e)'
    return quotes and refusals in inspect.getsource(api_router)


def compiles_when_eager() -> bool:
    return hasattr(batched_count_greater_than, "_torchdynamo_orig_callable")


def rewinds_generators() -> bool:
    with pytest.raises(RuntimeError, match="does not use offset"):
        torch.Generator("cpu").set_offset(0)
    source = Path(inspect.getfile(GPUModelRunner)).read_text()
    return "gen.set_offset(gen.get_offset() - 4)" in source


def forgets_sources() -> bool:
    models = Path(import_utils.__file__).parents[1] / "models"
    cache = import_utils.create_import_structure_from_path.cache_info()
    return (cache.maxsize or 0) < sum(path.is_dir() for path in models.iterdir())


NEEDED: dict[Patch, Callable[[], bool]] = {
    patches.COMPILATION: compiles_when_eager,
    patches.EXCEPTION_HANDLERS: handles_errors_itself,
    patches.GENERATE: compiles_without_a_limit,
    patches.IMPORT_STRUCTURE: forgets_sources,
    patches.INCOMPLETE_TEXT: decodes_incomplete_characters_again,
    patches.INSPECT: starts_an_interpreter,
    patches.LOG: logs_request_content,
    patches.LORA_INFO: names_adapters_in_labels,
    patches.METRICS: unregisters_other_metrics,
    patches.PARSE_DELTA: withholds_text,
    patches.SANITIZE: sanitizes_slowly,
    patches.SEEDS: rewinds_generators,
    patches.TOKEN_TEXTS: decodes_tokens_again,
    patches.TO_MESSAGES: refuses_lists_as_tool_input,
}
INSTALLED = Version(Version(vllm.__version__).public)


def applies_to_installed_vllm(row: Patch) -> bool:
    """Return whether a patch is meant for the installed vLLM."""
    release = Version(f"{INSTALLED.major}.{INSTALLED.minor}")
    return row.last_release is None or release <= Version(row.last_release)


@pytest.mark.parametrize("row", NEEDED, ids=patch_name)
def test_a_patch_is_needed_in_the_releases_of_its_row(row: Patch) -> None:
    if applies_to_installed_vllm(row):
        assert NEEDED[row](), (
            f"{patch_name(row)} may be unnecessary: try without it, or set its `last_release`"
        )


@pytest.mark.parametrize("row", [row for row in PATCHES if row not in NEEDED], ids=patch_name)
def test_a_patch_without_a_check_of_its_need_was_reviewed_for_the_installed_vllm(
    row: Patch,
) -> None:
    """These patches need a running engine, or they change a behaviour that is not a defect."""
    newest = Version(patches.NEWEST_RELEASE)
    assert INSTALLED.release[:2] <= newest.release, (
        f"{patch_name(row)}: {row.reason} Check whether this still holds for vLLM {INSTALLED}, "
        f"and once all of these rows are checked, raise NEWEST_RELEASE in seam/patches.py"
    )
