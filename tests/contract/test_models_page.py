"""Tests that the page about families of models agrees with vLLM, and with the worker's own list."""

import json
import time
from pathlib import Path

import models
import pytest
from models import Support
from packaging.version import Version
from support import ROOT
from support.doctor import CPU, arguments
from support.models import configs
from transformers.models.auto import modeling_auto
from vllm import ModelRegistry
from vllm.transformers_utils.config import get_config

from worker.engine.model_config import read_model_shape
from worker.engine.start.parsers import FAMILIES
from worker.errors import StartFailed
from worker.settings import history

ROWS = [family for families in models.read_families().values() for family in families]
SUCCESSORS = history.load_history()["successors"]["architectures"]
SERVED = {Support.NATIVE, Support.TRUSTED, Support.TRANSFORMERS}
# The types of transformers' models by architecture, without importing the models.
TYPES = {
    architecture: model_type
    for name, types in vars(modeling_auto).items()
    if name.endswith("_MAPPING_NAMES")
    for model_type, architecture in types.items()
}
# As in repositories of that time: attention does not go through transformers' interface.
OLD_CODE = """
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

class OldAttention(nn.Module):
    pass

class OldConfig(PreTrainedConfig):
    model_type = "qwen"

class OldModel(PreTrainedModel):
    config_class = OldConfig
"""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the two-second pause before vLLM retries to parse a malformed configuration."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


def write_config(directory: Path, **config: object) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def needs_code(architecture: str, model_type: str, directory: Path) -> bool:
    """Return whether vLLM refuses a configuration of which the repository has a class, too."""
    model_type = model_type or TYPES[architecture]
    auto_map = {"AutoConfig": "own.Own"}
    write_config(directory, architectures=[architecture], model_type=model_type, auto_map=auto_map)
    try:
        get_config(directory, trust_remote_code=False)
    except (RuntimeError, ValueError) as error:
        message = str(error)
    else:
        return False
    assert "trust_remote_code" in message
    return True


# A class of vLLM calls this deprecated function of transformers.
@pytest.mark.filterwarnings("ignore:`rope_config_validation`:FutureWarning")
def test_vllm_reads_the_configurations_without_trust_that_the_page_says(tmp_path: Path) -> None:
    for row in ROWS:
        if row.support in {Support.NATIVE, Support.TRUSTED} and not row.code:
            found = {needs_code(name, row.model_type, tmp_path) for name in row.architectures}
            assert found == {row.support is Support.TRUSTED}, row.title


def test_a_family_that_is_gone_is_refused_by_vllm(tmp_path: Path) -> None:
    gone = {name for row in ROWS if row.support is Support.GONE for name in row.architectures}
    assert {"AquilaModel", "MPTForCausalLM", "QWenLMHeadModel", "XverseForCausalLM"} <= gone
    # vLLM accepts a class of transformers first, and refuses it when it builds the model.
    for name in sorted(gone - models.list_transformers_names()):
        config = configs.LLAMA_3_1_8B | {"architectures": [name]}
        engine = arguments(CPU, MODEL=str(write_config(tmp_path, **config)))
        with pytest.raises(StartFailed, match=f"{name} was supported in vLLM until"):
            read_model_shape(engine, [name])


def test_trust_does_not_bring_a_family_back(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD_CODE)
    auto_map = {"AutoConfig": "old.OldConfig", "AutoModelForCausalLM": "old.OldModel"}
    old = {"architectures": ["QWenLMHeadModel"], "model_type": "qwen", "auto_map": auto_map}
    directory = write_config(tmp_path, **configs.LLAMA_3_1_8B | old)
    engine = arguments(CPU, MODEL=str(directory), TRUST_REMOTE_CODE="1")
    with pytest.raises(StartFailed, match="was supported in vLLM until"):
        read_model_shape(engine, ["QWenLMHeadModel"])


def test_a_family_that_only_transcribes_is_one_by_its_class() -> None:
    for row in (row for row in ROWS if row.transcribes):
        model = ModelRegistry.models[row.architectures[0]].load_model_cls()
        assert model.supports_transcription_only


def test_the_page_has_the_families_with_parsers_and_the_successors_of_those_that_are_gone() -> None:
    listed = {name for row in ROWS for name in row.architectures}
    assert {name for family in FAMILIES for name in family.architectures} <= listed
    served = {model for row in ROWS if row.support in SERVED for model in row.models}
    assert SUCCESSORS.keys() <= history.load_history()["removed"]["architectures"].keys()
    assert {*SUCCESSORS.values()} <= served


def test_the_oldest_vllm_is_the_oldest_tested_one() -> None:
    tested = (ROOT / "tests" / "vllm-releases").glob("*.txt")
    assert min(Version(path.stem) for path in tested) == Version(history.OLDEST_VLLM)
