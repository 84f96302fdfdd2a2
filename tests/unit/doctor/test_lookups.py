"""Findings of the doctor about adapters, draft models and separate tokenizers."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from support.doctor import CPU, arguments

from worker.doctor.engines import report_part
from worker.doctor.findings import Finding, Level
from worker.doctor.lookups import Lookups
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.settings.sources import RawSettings
from worker.store import Artifact, Origin, Snapshot


def check(**settings: str) -> Finding:
    """Check the only artifact besides the model, by its files on the disk."""
    engine = arguments(CPU, **settings)
    _, part = artifacts_in_arguments(engine)
    lookups = Lookups(RawSettings(), Path("/nowhere"))
    return report_part(part, lookups.wait_for_result(part), engine)


def adapter(path: Path | str) -> dict[str, str]:
    return {"ENABLE_LORA": "1", "LORA_MODULES": f"sql={path}"}


def draft(model: Path) -> dict[str, str]:
    config = {"model": str(model), "num_speculative_tokens": 2}
    return {"SPECULATIVE_CONFIG": json.dumps(config)}


def test_an_adapter_needs_its_configuration(tmp_path: Path) -> None:
    found = check(**adapter(tmp_path))
    assert (found.level, found.topic) == (Level.FAIL, "adapter")
    assert found.text == (
        f"sql: {tmp_path}: there is no adapter_config.json, so this is not an adapter"
    )
    (tmp_path / "adapter_config.json").write_text("{}")
    assert check(**adapter(tmp_path)).level is Level.OK


def test_an_adapter_may_be_in_a_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "adapter_config.json").write_text("{}")
    assert check(**adapter("~/own")).text == "sql: ~/own is a directory"


def test_a_draft_model_needs_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = check(**draft(tmp_path))
    assert (found.level, found.topic) == (Level.FAIL, "draft model")
    assert "no file matches" in found.text
    (tmp_path / "model.bin").write_bytes(b"0")
    assert check(**draft(tmp_path)).level is Level.OK


def test_a_tokenizer_needs_a_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = check(TOKENIZER=str(tmp_path))
    assert (found.level, found.topic) == (Level.FAIL, "tokenizer")
    assert found.text == f"TOKENIZER_NAME: {tmp_path}: there are no files of a tokenizer"
    (tmp_path / "vocab.txt").touch()
    assert check(TOKENIZER=str(tmp_path)).level is Level.OK


def test_a_missing_artifact_is_reported_with_the_name_of_its_setting() -> None:
    engine = arguments(CPU, TOKENIZER="org/none")
    _, part = artifacts_in_arguments(engine)
    text = "org/none: no such repository"
    found = report_part(part, Finding(Level.FAIL, "model", text, "mend it"), engine)
    assert found == Finding(Level.FAIL, "tokenizer", f"TOKENIZER_NAME: {text}", "mend it")


@pytest.fixture
def lookups(tmp_path: Path) -> Lookups:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
        (tmp_path / name / "model.bin").touch()
    names = {"MODEL_NAME": "first", "EMBEDDING_MODEL_NAME": "second"}
    raw = RawSettings({name: str(tmp_path / model) for name, model in names.items()})
    return Lookups(raw, tmp_path)


def test_models_are_looked_up_by_the_settings_that_name_them(lookups: Lookups) -> None:
    found = {prefix: lookups.wait_for_result(model) for prefix, model in lookups.models.items()}
    types = {
        prefix: (model.config["model_type"], model.origin)
        for prefix, model in found.items()
        if isinstance(model, Snapshot)
    }
    assert types == {"": ("first", Origin.DIRECTORY), "EMBEDDING_": ("second", Origin.DIRECTORY)}


@pytest.mark.parametrize(
    ("name", "level", "topic"),
    [
        pytest.param("s3://bucket/model", Level.UNKNOWN, "model", id="other storage"),
        pytest.param("a\0b", Level.FAIL, "model", id="no path"),
        # A token that can't be sent in a header.
        pytest.param("org/name", Level.FAIL, "access", id="a token with quotes"),
    ],
)
def test_a_failed_lookup_is_a_finding(
    lookups: Lookups, name: str, level: Level, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_“x”")
    found = lookups.wait_for_result(Artifact(name))
    assert isinstance(found, Finding)
    assert (found.level, found.topic) == (level, topic)
    assert "“" not in found.text + found.change
