"""Combinations of settings and models, and whether a worker without a GPU starts with them.

The rows are in starts.json. ``<name>`` in a value is replaced with a directory that ``make_models``
creates. The message of a row is part of the doctor's message and of the error at startup.
"""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from support import ROOT
from support.models import vision
from support.models.configs import WHISPER, copy_model
from support.models.damaged import LFS_POINTER
from support.models.lora import REFUSED_BY_VLLM, make_adapter, set_config
from support.models.minilm import MODEL as MINILM
from support.models.quantized import quantize_weights
from support.models.tiny import MAKERS
from worker.volume.adapters import CONFIG

CPU_INFO = Path("/proc/cpuinfo")


class StartCase(NamedTuple):
    """Settings, and the message about them; without MODEL_NAME, the model is the demo model.

    ``start_message`` is the message at startup if the library that reads the weights has another
    one.
    """

    name: str
    settings: dict[str, str]
    message: str = ""
    start_message: str = ""

    @property
    def starts(self) -> bool:
        return not self.message

    def skip_if_impossible(self) -> None:
        """Skip a test if this machine's processor or transformers lacks the case's feature."""
        if "KV_CACHE_DTYPE" in self.settings and "avx512f" not in CPU_INFO.read_text():
            pytest.skip("vLLM's 8-bit cache on a CPU needs AVX-512")
        if "<no processor>" in self.settings.values() and not vision.CAN_BE_MADE:
            pytest.skip("this transformers needs torchvision for images")


_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
START_CASES = [StartCase(*row) for row in _DATA["cases"]]
# Names of one case for each part of the doctor; the doctor's verdicts on the others are slow tests.
SAMPLE = set(_DATA["sample"])
# Of the cases that are refused on a CPU: those that no GPU would accept, and those that GPUs
# accept.
REFUSED_ON_ALL_DEVICES = [
    case for case in START_CASES if case.name in _DATA["refused on every device"]
]
REFUSED_ON_CPUS = [case for case in START_CASES if case.name in _DATA["refused only on CPUs"]]
# Names of the cases that a start refuses only with a core: for its memory, its layers, its weights
# or the first request.
REFUSED_WITH_CORE = set(_DATA["refused with a core"])


def environ(case: StartCase, directory: Path) -> dict[str, str]:
    """Return the variables of a case, with the directories that ``make_models`` has created."""
    settings = {"MODEL_NAME": "<demo>", "HF_HUB_OFFLINE": "1", **case.settings}
    for place in directory.iterdir():
        settings = {
            name: value.replace(f"<{place.name}>", str(place)) for name, value in settings.items()
        }
    return {**settings, "HF_HOME": str(directory / "no cache")}


def make_models(demo: Path, directory: Path) -> None:
    """Create the models and adapters of the cases."""
    (directory / "demo").symlink_to(demo)
    (directory / "minilm").symlink_to(MINILM)
    (directory / "plugins").symlink_to(ROOT / "tests" / "plugins")
    copy_model(demo, directory / "xverse", architectures=["XverseForCausalLM"])
    copy_model(demo, directory / "foreign", model_type="own", auto_map={"AutoConfig": "own.Own"})
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    copy_model(demo, directory / "gptq", quantization_config=gptq)
    MAKERS["qwen3_moe"](directory / "experts", demo)
    for form in ("fp8", "int8"):
        quantize_weights(copy_model(demo, directory / form), form)
    copy_model(demo, directory / "odd heads", num_attention_heads=3)
    copy_model(demo, directory / "speech", **WHISPER)
    cut = copy_model(demo, directory / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (copy_model(demo, directory / "weightless") / "model.safetensors").unlink()
    (copy_model(demo, directory / "shapeless") / "config.json").write_text("{")
    _make_wrong_directories(demo, directory)
    make_adapter(directory / "adapter", demo)
    make_adapter(directory / "rank64", demo)
    set_config(r=64)(directory / "rank64")
    make_adapter(directory / "other-modules", demo)
    REFUSED_BY_VLLM["modules"][0](directory / "other-modules")
    make_adapter(directory / "broken", demo)
    (directory / "broken" / CONFIG).unlink()


def _make_wrong_directories(demo: Path, directory: Path) -> None:
    """Create directories that people name as the model, and that are no model, or a part of one."""

    def copy(name: str, *removed: str) -> Path:
        folder = copy_model(demo, directory / name)
        for file in removed:
            (folder / file).unlink(missing_ok=True)
        return folder

    settings = {"tokenizer_class": "Qwen2Tokenizer", "chat_template": "{{ messages }}"}
    folder = copy("no vocabulary", "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    copy("no tokenizer", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    copy_model(demo, directory / "small vocabulary", vocab_size=8)
    (directory / "pipeline").mkdir()
    (directory / "pipeline" / "model_index.json").write_text("{}")
    for name in ("refs", "snapshots"):
        (directory / "models--org--name" / name).mkdir(parents=True)
    for name, file in {
        "weight pointers": "model.safetensors",
        "tokenizer pointer": "tokenizer.json",
    }.items():
        (copy(name) / file).write_text(LFS_POINTER)
    if vision.CAN_BE_MADE:
        (directory / "no processor").mkdir()
        vision.make_vision_model(directory / "no processor", demo)
        (directory / "no processor" / "processor_config.json").unlink()
    (copy("sampling defaults") / "generation_config.json").write_text('{"top_p": 1.5}')
    (copy("token ids") / "generation_config.json").write_text('{"eos_token_id": [3, "x"]}')
    copy_model(demo, directory / "other shape", hidden_size=256, num_attention_heads=4)
