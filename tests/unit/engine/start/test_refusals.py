"""Classification of failed startups by the messages of vLLM and its libraries."""

import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.settings import engine_arguments

from worker.engine.arguments import EngineArguments
from worker.engine.run.core import CoreFailed
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start.refusals import (
    MACHINE_CAUSES,
    error_message,
    explain_failure,
    explain_start_errors,
    is_machine_fault,
)
from worker.errors import MachineUnfit, StartFailed

# Messages of CUDA, torch, vLLM, NCCL and the kernel.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("refusals.json").read_text())
DIED = "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': %d}"


@pytest.mark.parametrize("message", MESSAGES["machine"])
def test_failures_of_the_machine_affect_one_worker(message: str) -> None:
    assert is_machine_fault(CoreFailed(message))


@pytest.mark.parametrize("message", MESSAGES["configuration"])
def test_failures_of_the_model_and_of_settings_affect_all_workers(message: str) -> None:
    assert not is_machine_fault(CoreFailed(message))


@pytest.mark.parametrize("cause", MACHINE_CAUSES)
def test_each_cause_that_is_the_machines_is_found_in_an_example(cause: str) -> None:
    messages = [f"CoreFailed\n{message}" for message in MESSAGES["machine"]]
    assert any(re.search(cause, message, re.MULTILINE) for message in messages)


@pytest.mark.parametrize(
    ("error", "is_machines"),
    [
        (ValueError("an odd rank"), False),
        (ModuleNotFoundError("No module named 'einops'"), False),
        (OSError("a is not a local folder and is not a valid model identifier"), False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (StartFailed("cores for no GPU"), False),
        (AttributeError("no attribute"), False),
        (RuntimeError("something"), False),
        (IndexError("list index out of range"), False),
        (MachineUnfit("the driver is too old"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (OSError(errno.ENOSPC, "voll"), True),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (ConnectionError("the hub"), True),
        (TimeoutError("the hub"), True),
    ],
)
def test_the_class_of_an_error_in_this_process_counts(error: Exception, is_machines: bool) -> None:
    assert is_machine_fault(error) is is_machines


def test_a_full_gpu_affects_all_workers_only_if_the_operator_set_the_share() -> None:
    error = ValueError("Free memory on device cuda:0 is less than desired GPU memory utilization")
    assert is_machine_fault(error, {"MAX_MODEL_LEN"})
    assert not is_machine_fault(error, {"GPU_MEMORY_UTILIZATION"})


@pytest.mark.parametrize(
    ("reason", "is_memory"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: Free memory is less than desired GPU memory utilization (0.95)", True),
        ("ValueError: No available memory for the cache blocks.", False),
    ],
)
def test_out_of_memory_errors_differ_from_other_failures(reason: str, is_memory: bool) -> None:
    assert is_out_of_memory(reason) is is_memory


@pytest.mark.parametrize(
    ("status", "is_machines"), [(1, False), (-9, True), (-11, True), (-6, True)]
)
def test_the_output_of_a_core_before_a_crash_is_not_the_reason(
    status: int, is_machines: bool
) -> None:
    error = CoreFailed("ValueError: handled long ago", "load_weights")
    error.__cause__ = RuntimeError(DIED % status)
    assert is_machine_fault(error) is is_machines


@pytest.mark.parametrize(
    ("line", "function", "advice"),
    [
        ("AssertionError", "load_weights", "w.safetensors can't be read"),
        ("AssertionError", "initialize_model", "w.safetensors can't be read"),
        # Neither a missing package nor a broken GPU is a fault of the weights.
        ("ImportError: Please install timm", "initialize_model", ""),
        ("torch.AcceleratorError: CUDA error: unknown error", "load_weights", ""),
        ("torch.OutOfMemoryError: CUDA out of memory.", "initialize_model", "a smaller model"),
    ],
)
def test_the_weights_are_blamed_only_for_errors_that_they_may_cause(
    tmp_path: Path, line: str, function: str, advice: str
) -> None:
    for name in ("w.safetensors", "config.json"):
        (tmp_path / name).write_bytes(b"{}")
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(), quantization=None)
    )
    failure = explain_failure(CoreFailed(line, function), configured_arguments(tmp_path, config))
    assert failure.problem == line.rstrip(".")
    assert advice in failure.remedy
    assert bool(advice) is bool(failure.remedy)


def test_the_error_of_a_phase_names_the_model_and_keeps_its_advice(tmp_path: Path) -> None:
    with (
        pytest.raises(StartFailed) as raised,
        explain_start_errors(configured_arguments(tmp_path)),
    ):
        raise StartFailed("the tokenizer is broken", "set another one", ["TOKENIZER"])
    message = f"vLLM could not start MODEL_NAME={tmp_path}: the tokenizer is broken"
    assert raised.value.message == f"{message}: set another one"
    assert (raised.value.culprits, raised.value.affects_all_workers) == (("TOKENIZER",), True)
    with pytest.raises(MachineUnfit), explain_start_errors(configured_arguments(tmp_path)):
        raise CoreFailed("ended by SIGSEGV")


def test_a_refused_first_request_has_a_remedy(tmp_path: Path) -> None:
    option = {"CHAT_TEMPLATE_CONTENT_FORMAT": "openai"}
    arguments = replace(configured_arguments(tmp_path), operator_options=option)
    with pytest.raises(StartFailed) as raised, explain_start_errors(arguments):
        raise StartFailed("a first request is refused: can only concatenate str to str")
    assert raised.value.remedy == "set CHAT_TEMPLATE_CONTENT_FORMAT=auto"


def test_a_setting_is_named_as_the_operator_wrote_it(tmp_path: Path) -> None:
    arguments = replace(
        configured_arguments(tmp_path),
        spellings={"DTYPE": "dtype"},
        extra_option_names=frozenset({"MAX_MODEL_LEN"}),
    )
    names = [arguments.setting_name(name) for name in ("CHAT_TEMPLATE", "DTYPE", "MAX_MODEL_LEN")]
    assert names == ["CUSTOM_CHAT_TEMPLATE", "dtype", "--max-model-len"]


def configured_arguments(model: Path, config: Any = None) -> EngineArguments:
    arguments = engine_arguments(model=str(model), hf_config_path=None, hf_overrides=None)
    return replace(arguments, config=config)


def test_options_that_a_message_quotes_are_written_as_settings() -> None:
    quoted = "Try decreasing `max_model_len`, or set `trust_remote_code=True` for `FooModel`."
    written = "Try decreasing MAX_MODEL_LEN, or set TRUST_REMOTE_CODE=True for `FooModel`"
    assert error_message(ValueError(quoted)) == written


@pytest.mark.parametrize(
    ("message", "shortened"),
    [
        ("One. Two is\n  longer.", "One. Two is longer"),
        ("One. Two. Three is too long.", "One. Two"),
        ("A config.json of 1.5 GB, e.g. X. Next", "A config.json of 1.5 GB, e.g. X"),
        ("one sentence that is too long for it", "one sentence that is too long …"),
    ],
)
def test_a_long_message_is_cut_at_the_end_of_a_sentence(message: str, shortened: str) -> None:
    assert error_message(ValueError(message), max_length=len(shortened) + 1) == shortened
