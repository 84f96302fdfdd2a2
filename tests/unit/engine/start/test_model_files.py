"""Models with files that vLLM refuses or can't load: which error, and which advice."""

import errno
import json
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
from worker.engine.start.artifacts import EngineArtifacts
from worker.engine.start.refusals import LOOKS, explain_load_failure
from worker.errors import MachineUnfit
from worker.settings.sources import gather_settings
from worker.store import Artifact, ArtifactLocation, ModelUnavailable, disk

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


def arguments(model: Path, **operator_options: str) -> EngineArguments:
    base = engine_arguments(model=str(model), hf_config_path=None, hf_overrides=None)
    return replace(base, operator_options=operator_options)


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
