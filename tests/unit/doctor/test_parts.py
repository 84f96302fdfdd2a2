"""What the doctor says of adapters, and of a tokenizer that is not the model's own."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from support.doctor import CPU, arguments

from worker.doctor.findings import Finding, Level
from worker.doctor.lookups import Lookups
from worker.doctor.parts import Part, check_part, parts_of
from worker.settings.sources import Given
from worker.store import Origin, Places, Snapshot, Unavailable, Wanted
from worker.store.hub import locate


def checked(**settings: str) -> Finding:
    """Check the only part that is named, by what lies on the disk."""
    part = only_part(**settings)
    try:
        return check_part(part, locate(part.wanted, Places(Path("/nowhere"))))
    except Unavailable as why:
        return check_part(part, Finding(Level.FAIL, "model", why.problem, why.remedy))


def only_part(**settings: str) -> Part:
    (part,) = parts_of(arguments(CPU, **settings))
    return part


def adapter(path: Path | str) -> dict[str, str]:
    return {"ENABLE_LORA": "1", "LORA_MODULES": f"sql={path}"}


def test_nothing_is_loaded_beside_a_model_alone() -> None:
    assert parts_of(arguments()) == []
    assert parts_of(arguments(TOKENIZER="org/name")) == []


def test_an_adapter_needs_its_configuration_and_its_weights(tmp_path: Path) -> None:
    found = checked(**adapter(tmp_path))
    assert (found.level, found.topic) == (Level.FAIL, "adapter")
    assert found.text == f"sql: there is no adapter_config.json in {tmp_path}"
    (tmp_path / "adapter_config.json").write_text("{}")
    found = checked(**adapter(tmp_path))
    assert found.text == f"sql: there is no adapter_model.safetensors in {tmp_path}"
    (tmp_path / "adapter_model.bin").write_bytes(b"0")
    assert checked(**adapter(tmp_path)).level is Level.OK
    (tmp_path / "adapter_model.safetensors").write_bytes(b"0")
    assert "no safetensors file" in checked(**adapter(tmp_path)).text


def test_an_adapter_in_no_directory_fails(tmp_path: Path) -> None:
    found = checked(**adapter(tmp_path / "none"))
    assert (found.level, found.topic) == (Level.FAIL, "adapter")
    assert found.text.startswith(f"sql: {tmp_path}/none: neither a directory")


def test_the_home_of_the_user_is_looked_in_for_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own").mkdir()
    assert checked(**adapter("~/own")).text == "sql: there is no adapter_config.json in ~/own"


def test_a_tokenizer_needs_files_of_one(tmp_path: Path, demo_model: Path) -> None:
    shutil.copy(demo_model / "config.json", tmp_path)
    found = checked(TOKENIZER=str(tmp_path))
    assert (found.level, found.topic) == (Level.FAIL, "tokenizer")
    assert found.text == f"TOKENIZER_NAME: there are no files of a tokenizer in {tmp_path}"
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    assert checked(TOKENIZER=str(tmp_path)).level is Level.OK


@pytest.mark.parametrize("name", ["vocab.txt", "tekken.json", "spiece.model", "qwen.tiktoken"])
def test_tokenizers_are_known_by_many_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert checked(TOKENIZER=str(tmp_path)).level is Level.OK


def test_what_can_not_be_had_is_reported_with_the_settings_name() -> None:
    part = only_part(TOKENIZER="org/none")
    found = check_part(
        part, Finding(Level.FAIL, "model", "org/none: no such repository", "mend it")
    )
    assert found == Finding(
        Level.FAIL, "tokenizer", "TOKENIZER_NAME: org/none: no such repository", "mend it"
    )


def test_a_tokenizer_without_a_revision_has_the_models() -> None:
    assert only_part(TOKENIZER="org/t", REVISION="v1").wanted.revision == "v1"
    both = only_part(TOKENIZER="org/t", REVISION="v1", TOKENIZER_REVISION="v2")
    assert both.wanted.revision == "v2"


@pytest.fixture
def lookups(tmp_path: Path) -> Lookups:
    """The first of two models is the one that the settings name."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
    return Lookups(Given({"MODEL_NAME": str(tmp_path / "first")}))


def test_the_model_of_vllms_arguments_is_looked_up_instead(
    lookups: Lookups, tmp_path: Path
) -> None:
    named = lookups.model("", None)
    meant = lookups.model("", arguments(MODEL=str(tmp_path / "second")))
    assert isinstance(named, Snapshot)
    assert isinstance(meant, Snapshot)
    assert (named.config["model_type"], meant.config["model_type"]) == ("first", "second")
    assert (meant.origin, lookups.model("EMBEDDING_", None)) == (Origin.DIRECTORY, None)


def test_what_lies_in_other_storage_is_not_known(lookups: Lookups) -> None:
    found = lookups.result(Wanted("s3://bucket/model"))
    assert isinstance(found, Finding)
    assert found.level is Level.UNKNOWN


def test_what_can_not_be_read_is_a_finding(lookups: Lookups) -> None:
    odd = lookups.result(Wanted("a\0b"))
    assert isinstance(odd, Finding)
    assert (odd.level, odd.topic) == (Level.FAIL, "model")


def test_a_token_that_no_header_carries_is_a_matter_of_access(
    lookups: Lookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_“x”")
    found = lookups.result(Wanted("org/name"))
    assert isinstance(found, Finding)
    assert (found.level, found.topic) == (Level.FAIL, "access")
    assert "“" not in found.text + found.change


def test_a_draft_model_is_looked_for_and_needs_weights(tmp_path: Path) -> None:
    draft = {
        "SPECULATIVE_CONFIG": json.dumps({"model": str(tmp_path), "num_speculative_tokens": 2})
    }
    found = checked(**draft)
    assert (found.level, found.topic) == (Level.FAIL, "draft model")
    (tmp_path / "config.json").write_text("{}")
    found = checked(**draft)
    assert found.text == f"SPECULATIVE_CONFIG: there are no weights in {tmp_path}"
    (tmp_path / "model.bin").write_bytes(b"0")
    assert checked(**draft).level is Level.OK
    own = {"model": "org/name", "num_speculative_tokens": 2}
    assert parts_of(arguments(CPU, SPECULATIVE_CONFIG=json.dumps(own))) == []
