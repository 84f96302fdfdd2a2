"""Whose fault a failed start is, told by what vLLM and the libraries below it say."""

import errno

import pytest

from worker.engine.blame import blamed, quoting_settings
from worker.errors import MachineUnfit, StartFailed

# As CUDA, torch, vLLM, NCCL and the kernel word them.
OF_THE_MACHINE = (
    "RuntimeError: CUDA error: no CUDA-capable device is detected",
    "RuntimeError: No CUDA GPUs are available",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)",
    "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "ValueError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    "torch.AcceleratorError: CUDA error: unknown error",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "RuntimeError: the launch timed out and was terminated",
    "RuntimeError: Error 802: system not yet initialized",
    "RuntimeError: Did not receive response from front-end process within 5 minutes",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "pynvml.NVMLError_DriverNotLoaded: NVML: Driver Not Loaded",
    "RuntimeError: NCCL error: unhandled system error",
    "OSError: [Errno 28] No space left on device",
    "OSError: [Errno 116] Stale file handle",
    "OSError: [Errno 12] Cannot allocate memory",
    "OSError: [Errno 98] Address already in use",
    "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5000')",
    "PermissionError: [Errno 13] Permission denied: '/tmp/cache'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/psm_1'",
    "free(): invalid pointer",
    "terminate called without an active exception",
    "AttributeError: 'NoneType' object has no attribute 'max_model_len'",
    "Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "Engine core initialization failed. Failed core proc(s): {'EngineCore': -11}",
    "ValueError: Free memory on device cuda:0 (1.0/79.2 GiB) on startup is less than desired GPU "
    "memory utilization (0.95, 75.2 GiB).",
)
OF_WHAT_WAS_ASKED = (
    "ValueError: To serve at least one request with the models's max seq len (131072), 16 GiB",
    "ValueError: No available memory for the cache blocks. Try increasing it when initializing.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
    "torch.AcceleratorError: CUDA error: out of memory",
    "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.",
    "ValueError: Model architectures ['Foo'] are not supported for now.",
    "ValidationError: User-specified max_model_len (99999) is greater than the derived one",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "OSError: /models/a does not appear to have a file named config.json",
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/tokenizer.json'",
    "TypeError: AWQConfig.__init__() missing 1 required positional argument: 'group_size'",
    "ImportError: This modeling file requires the following packages: einops",
    "NotImplementedError: FP8 is not implemented for this model",
)


@pytest.mark.parametrize("message", OF_THE_MACHINE)
def test_what_a_machine_may_be_to_blame_for_is_told_to_nobody(message: str) -> None:
    assert not blamed(RuntimeError(message), f"vLLM could not start m: {message}").everywhere


@pytest.mark.parametrize("message", OF_WHAT_WAS_ASKED)
def test_what_any_machine_would_refuse_is_everybodys(message: str) -> None:
    failure = blamed(RuntimeError(message), f"vLLM could not start m: {message}")
    assert failure.everywhere
    assert failure.message == quoting_settings(f"vLLM could not start m: {message}")


@pytest.mark.parametrize(
    ("error", "everywhere"),
    [
        (ValueError("an odd rank"), True),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "no text"), True),
        (ModuleNotFoundError("No module named 'einops'"), True),
        (OSError("a is not a local folder and is not a valid model identifier"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), True),
        (StartFailed("cores for no GPU"), True),
        (MachineUnfit("the driver is too old"), False),
        (AttributeError("no attribute"), False),
        (KeyError("layers"), False),
        (TypeError("unexpected argument"), False),
        (RuntimeError("something"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (ConnectionError("the hub"), False),
    ],
)
def test_of_an_error_in_this_process_its_class_tells(error: Exception, everywhere: bool) -> None:
    assert blamed(error, str(error)).everywhere is everywhere


def test_a_gpu_without_room_is_the_operators_fault_who_set_the_share() -> None:
    said = "Free memory on device cuda:0 is less than desired GPU memory utilization (0.99)"
    assert not blamed(ValueError(said), said, {"MAX_MODEL_LEN"}).everywhere
    assert blamed(ValueError(said), said, {"GPU_MEMORY_UTILIZATION"}).everywhere


@pytest.mark.parametrize(
    ("status", "everywhere"), [(1, True), (-9, True), (-11, False), (-6, False)]
)
def test_what_a_core_had_printed_before_it_crashed_is_not_why(
    status: int, everywhere: bool
) -> None:
    error = RuntimeError("ValueError: handled long ago")
    error.__cause__ = RuntimeError(
        f"Engine core initialization failed. Failed core proc(s): {{'EngineCore_DP0': {status}}}"
    )
    assert blamed(error, str(error)).everywhere is everywhere


def test_options_that_a_message_quotes_are_written_as_settings() -> None:
    quoted = "Try decreasing `max_model_len`, or set `trust_remote_code=True` for `FooModel`."
    written = "Try decreasing MAX_MODEL_LEN, or set TRUST_REMOTE_CODE=True for `FooModel`."
    assert blamed(ValueError(), quoted).message == written


def test_a_full_disk_is_told_by_its_number_too() -> None:
    assert not blamed(OSError(errno.ENOSPC, "voll"), "voll").everywhere


def test_a_core_that_was_killed_lacked_memory() -> None:
    died = "Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}"
    failure = blamed(RuntimeError(died), died)
    assert failure.everywhere
    assert "memory is exhausted" in failure.message
