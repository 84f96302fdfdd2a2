"""Classification of failed startups by the messages of vLLM and its libraries."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.engine.arguments import engine_arguments

from worker.engine.run.healing.core import CoreFailed
from worker.engine.start import cores
from worker.engine.start.refusals import classify_start_failure, error_message, start_failure
from worker.errors import MachineUnfit, StartFailed

# Messages of CUDA, torch, vLLM, NCCL and the kernel.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("refusals.json").read_text())
DIED = "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': %d}"


@pytest.mark.parametrize("message", MESSAGES["machine"])
def test_failures_that_the_machine_may_cause_affect_one_worker(message: str) -> None:
    assert not classify_start_failure(
        RuntimeError(message), f"vLLM could not start m: {message}"
    ).affects_all_workers


@pytest.mark.parametrize("message", MESSAGES["configuration"])
def test_failures_of_the_configuration_affect_all_workers(message: str) -> None:
    failure = classify_start_failure(RuntimeError(message), f"vLLM could not start m: {message}")
    assert failure.affects_all_workers
    assert failure.message == f"vLLM could not start m: {message}"


@pytest.mark.parametrize(
    ("error", "affects_all"),
    [
        (ValueError("an odd rank"), True),
        (ModuleNotFoundError("No module named 'einops'"), True),
        (OSError("a is not a local folder and is not a valid model identifier"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), True),
        (StartFailed("cores for no GPU"), True),
        (MachineUnfit("the driver is too old"), False),
        (AttributeError("no attribute"), False),
        (RuntimeError("something"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (OSError(errno.ENOSPC, "voll"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (ConnectionError("the hub"), False),
    ],
)
def test_the_class_of_an_error_in_this_process_decides(error: Exception, affects_all: bool) -> None:
    assert classify_start_failure(error, str(error)).affects_all_workers is affects_all


def test_a_full_gpu_affects_all_workers_only_if_the_operator_set_the_share() -> None:
    message = "Free memory on device cuda:0 is less than desired GPU memory utilization (0.99)"
    assert not classify_start_failure(
        ValueError(message), message, {"MAX_MODEL_LEN"}
    ).affects_all_workers
    assert classify_start_failure(
        ValueError(message), message, {"GPU_MEMORY_UTILIZATION"}
    ).affects_all_workers


@pytest.mark.parametrize(
    ("status", "affects_all"), [(1, True), (-9, False), (-11, False), (-6, False)]
)
def test_the_output_of_a_core_before_a_crash_is_not_the_reason(
    status: int, affects_all: bool
) -> None:
    error = RuntimeError("ValueError: handled long ago")
    error.__cause__ = RuntimeError(DIED % status)
    assert classify_start_failure(error, str(error)).affects_all_workers is affects_all


# The last error in a core's output, the function of vLLM's loader that raised it, and whether every
# worker fails.
LOADER_ERRORS = [
    ("AssertionError", "load_weights", True),
    ("AssertionError", "initialize_model", True),
    ("AssertionError", "", False),
    ("KeyError: 'layers.0.w'", "load_weights", True),
    ("safetensors_rust.SafetensorError: invalid header", "load_weights", True),
    ("_pickle.UnpicklingError: invalid load key", "load_weights", True),
    ("RuntimeError: The size of tensor a (4) must match", "load_weights", True),
    ("RuntimeError: a kernel that does not compile", "initialize_model", False),
    ("OSError: [Errno 22] Invalid argument", "load_weights", True),
    ("OSError: [Errno 22] Invalid argument", "", False),
    ("OSError: [Errno 5] Input/output error", "load_weights", False),
    ("OSError: [Errno 116] Stale file handle", "load_weights", False),
    ("PermissionError: [Errno 13] Permission denied", "load_weights", False),
    ("torch.AcceleratorError: CUDA error: unknown error", "load_weights", False),
    ("MachineUnfit: the driver is too old", "initialize_model", False),
    (cores.OOM_KILLED, "", True),
]


@pytest.mark.parametrize(("line", "function", "affects_all"), LOADER_ERRORS)
def test_wrong_weights_affect_all_workers(line: str, function: str, affects_all: bool) -> None:
    failure = classify_start_failure(CoreFailed(line, function), line)
    assert failure.affects_all_workers is affects_all


def test_a_core_that_was_killed_from_outside_affects_one_worker() -> None:
    error = CoreFailed("AssertionError", "load_weights")
    error.__cause__ = RuntimeError(DIED % -9)
    assert not classify_start_failure(error, str(error)).affects_all_workers


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
    (tmp_path / "w.safetensors").write_bytes(b"")
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(), quantization=None)
    )
    arguments = engine_arguments(model=str(tmp_path))
    failure = start_failure(CoreFailed(line, function), arguments, line, config=config)
    expected = f"vLLM could not start MODEL_NAME={tmp_path}: {line}"
    assert failure.message.startswith(f"{expected}: " if advice else expected)
    assert advice in failure.message.removeprefix(expected)
    assert advice or failure.message == expected


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
