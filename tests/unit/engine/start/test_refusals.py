"""Why a start fails: whose fault it is, and the file or setting to change."""

import errno
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.hub.caches import SHARDS, make_model
from support.settings import engine_arguments

from worker.engine.arguments import EngineArguments
from worker.engine.run.core import CoreFailed
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start.artifacts import EngineArtifacts
from worker.engine.start.refusals import (
    LOOKS,
    MACHINE_CAUSES,
    error_message,
    explain_failure,
    explain_load_failure,
    explain_start_errors,
    is_machine_fault,
)
from worker.errors import MachineUnfit, StartFailed
from worker.settings.sources import gather_settings
from worker.store import Artifact, ArtifactLocation, ModelUnavailable, disk

# Messages of CUDA, torch, vLLM, NCCL and the kernel.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("refusals.json").read_text())
DIED = "Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': %d}"


def arguments(model: Path, **operator_options: str) -> EngineArguments:
    base = engine_arguments(model=str(model), hf_config_path=None, hf_overrides=None)
    return replace(base, operator_options=operator_options)


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
    configured = replace(arguments(tmp_path), config=SimpleNamespace(model_config=config()))
    failure = explain_failure(CoreFailed(line, function), configured)
    assert failure.problem == line.rstrip(".")
    assert advice in failure.remedy
    assert bool(advice) is bool(failure.remedy)


def test_the_error_of_a_phase_names_the_model_and_keeps_its_advice(tmp_path: Path) -> None:
    with (
        pytest.raises(StartFailed) as raised,
        explain_start_errors(arguments(tmp_path)),
    ):
        raise StartFailed("the tokenizer is broken", "set another one", ["TOKENIZER"])
    message = f"vLLM could not start MODEL_NAME={tmp_path}: the tokenizer is broken"
    assert raised.value.message == f"{message}: set another one"
    assert (raised.value.culprits, raised.value.affects_all_workers) == (("TOKENIZER",), True)
    with pytest.raises(MachineUnfit), explain_start_errors(arguments(tmp_path)):
        raise CoreFailed("ended by SIGSEGV")


def test_a_refused_first_request_has_a_remedy(tmp_path: Path) -> None:
    configured = arguments(tmp_path, CHAT_TEMPLATE_CONTENT_FORMAT="openai")
    with pytest.raises(StartFailed) as raised, explain_start_errors(configured):
        raise StartFailed("a first request is refused: can only concatenate str to str")
    assert raised.value.remedy == "set CHAT_TEMPLATE_CONTENT_FORMAT=auto"


def test_a_setting_is_named_as_the_operator_wrote_it(tmp_path: Path) -> None:
    spelled = replace(
        arguments(tmp_path),
        spellings={"DTYPE": "dtype"},
        extra_option_names=frozenset({"MAX_MODEL_LEN"}),
    )
    names = [spelled.setting_name(name) for name in ("CHAT_TEMPLATE", "DTYPE", "MAX_MODEL_LEN")]
    assert names == ["CUSTOM_CHAT_TEMPLATE", "dtype", "--max-model-len"]


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


# The files of a model that vLLM refuses or can't load:

SIZES = {"vocab_size": 6, "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 2}
OTHER_MODEL = "use the config.json of these weights, or set MODEL_NAME to another model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with weights of ``SIZES``."""
    shapes = {"embed": (6, 4), "layers.0.up": (8, 4), "layers.1.up": (8, 4)}
    save_file({name: np.zeros(shape) for name, shape in shapes.items()}, tmp_path / "a.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text(json.dumps(SIZES))
    return tmp_path


def look(arguments: EngineArguments, problem: str) -> str:
    return next(filter(None, (one(arguments, problem) for one in LOOKS)), "")


def explain(arguments: EngineArguments, config: Any) -> str:
    """Explain a failure of vLLM's loader, with vLLM's configuration of the model."""
    return explain_load_failure(replace(arguments, config=SimpleNamespace(model_config=config)))


def config(**changed: Any) -> Any:
    quantization = changed.pop("quantization", None)
    text_config = SimpleNamespace(**{**SIZES, **changed})
    return SimpleNamespace(hf_text_config=text_config, quantization=quantization)


@pytest.mark.parametrize("key", SIZES)
def test_the_key_that_contradicts_the_weights_is_named(model: Path, key: str) -> None:
    found = explain(arguments(model), config(**{key: 77}))
    says = f"config.json says {key}=77, which does not match a.safetensors"
    assert found == f"{says}: {OTHER_MODEL}"


def test_the_setting_that_contradicts_the_weights_is_named(model: Path) -> None:
    overriding = replace(arguments(model, HF_OVERRIDES="{}", SEED="1"), prefix="EMBEDDING_")
    says = "EMBEDDING_HF_OVERRIDES says vocab_size=5, which does not match a.safetensors"
    expected = f"{says}: leave EMBEDDING_HF_OVERRIDES unset"
    assert explain(overriding, config(vocab_size=5)) == expected


@pytest.mark.parametrize(
    "changed",
    [
        # The weights may have further layers, and tensors of experts have other dimensions.
        {"num_hidden_layers": 1},
        {"intermediate_size": 77, "num_experts": 8},
        # Packed weights have other dimensions.
        {"hidden_size": 77, "quantization": "awq"},
    ],
    ids=str,
)
def test_a_configuration_of_healthy_weights_is_not_blamed(
    model: Path, changed: dict[str, Any]
) -> None:
    found = explain(arguments(model, LOAD_FORMAT="safetensors"), config(**changed))
    text = "a.safetensors can't be read or does not match LOAD_FORMAT"
    assert found == f"{text}: leave LOAD_FORMAT unset"


def test_a_setting_that_has_no_dimensions_is_not_blamed_for_them(model: Path) -> None:
    found = explain(arguments(model, LOAD_FORMAT="safetensors"), config(vocab_size=5))
    assert found.startswith("config.json says vocab_size=5, which does not match a.safetensors")


def test_the_draft_may_be_the_cause(model: Path) -> None:
    drafting = arguments(model).with_options(speculative_config={"model": "org/draft"})
    assert "or of its draft in SPECULATIVE_CONFIG" in explain(drafting, config())


def test_weights_without_headers_and_matching_weights_are_named(model: Path) -> None:
    text = "a.safetensors can't be read or does not match config.json"
    assert explain(arguments(model), config()) == f"{text}: {OTHER_MODEL}"
    (model / "a.safetensors").rename(model / "pytorch_model.bin")
    assert explain(arguments(model), config()).startswith("pytorch_model.bin can't")


def test_a_broken_or_missing_file_is_named(model: Path) -> None:
    refusals = ["no config", "no tokenizer", "other"]
    assert look(arguments(model), "other") == ""
    (model / "tokenizer.json").write_text("{")
    broken = "tokenizer.json is not valid JSON: copy it again, or change MODEL_NAME"
    assert look(arguments(model), "other") == broken
    (model / "tokenizer.json").unlink()
    again = "copy the whole model again, or set TOKENIZER_NAME"
    lacking = f"there are no files with a vocabulary of a tokenizer: {again}"
    assert [look(arguments(model), text) for text in refusals] == ["", lacking, ""]
    (model / "tokenizer.json").write_text("{}")
    damaged = f"the tokenizer's files are damaged, or another model's: {again}"
    assert look(arguments(model), "no tokenizer") == damaged
    (model / "config.json").unlink()
    copy = "there is no config.json: copy the whole model again, or change MODEL_NAME"
    assert [look(arguments(model), text) for text in refusals] == [copy] * 3


def test_a_pointer_of_git_lfs_is_named(model: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (model / "tokenizer.json").write_text(pointer)
    expected = "tokenizer.json is a pointer of Git LFS, not the file: run `git lfs pull`"
    assert look(arguments(model), "other") == expected


def test_a_broken_file_of_another_tokenizer_is_named(model: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text("[")
    broken = "tokenizer_config.json is not valid JSON: copy it again, or change TOKENIZER_NAME"
    with_tokenizer = arguments(model).with_options(tokenizer=str(tokenizer))
    assert look(with_tokenizer, "no tokenizer") == broken


def test_files_that_vllm_does_not_read_are_not_blamed(model: Path) -> None:
    (model / "rows.json").write_text("1\n2\n")
    assert look(arguments(model), "CUDA driver initialization failed") == ""


def test_a_name_that_is_no_directory_has_no_files() -> None:
    assert look(arguments(Path("org/name")), "no config, no tokenizer") == ""


# Weights in an operator's directory are checked before an engine starts.


def locate(folder: Path, load_format: str = "auto") -> dict[Artifact, ArtifactLocation]:
    environ = {"MODEL_NAME": str(folder), "LOAD_FORMAT": load_format}
    artifacts = EngineArtifacts(gather_settings(environ, folder / "no file"))
    return artifacts.locate_and_log([Artifact(str(folder), load_format=load_format)])


def break_shard(folder: Path) -> None:
    (folder / SHARDS[0]).write_bytes(b"x")


@pytest.mark.parametrize(
    ("damage", "load_format", "problem"),
    [
        (lambda folder: (folder / SHARDS[1]).unlink(), "auto", f"{SHARDS[1]} is missing"),
        (break_shard, "auto", f"{SHARDS[0]} is not a safetensors file"),
        (lambda _: None, "pt", r"no file matches \*\.pt"),
    ],
)
def test_a_directory_with_weights_that_cannot_be_loaded_affects_all_workers(
    tmp_path: Path, damage: Callable[[Path], object], load_format: str, problem: str
) -> None:
    folder = make_model(tmp_path / "model", SHARDS)
    damage(folder)
    expected = rf"its weights can't be loaded \({problem}\): .*MODEL_NAME .*LOAD_FORMAT"
    with pytest.raises(ModelUnavailable, match=expected) as failed:
        locate(folder, load_format)
    assert failed.value.affects_all_workers


@pytest.mark.parametrize("load_format", ["dummy", "tensorizer"])
def test_a_directory_may_lack_weights_that_vllm_does_not_read_from_it(
    tmp_path: Path, load_format: str
) -> None:
    folder = make_model(tmp_path / "model", SHARDS)
    for name in SHARDS:
        (folder / name).unlink()
    assert locate(folder, load_format)


def test_a_disk_that_fails_affects_one_worker(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert locate(model)
    monkeypatch.setattr(disk, "safe_open", fail)
    with pytest.raises(MachineUnfit, match="can't be read: Input/output error"):
        locate(model)
