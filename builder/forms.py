"""The platform's forms for settings: the form of its console, and that of its hub with presets.

The listing on the hub has the GPU pools on which each preset fits. ``presets.json`` has the data
about the models: the keys of config.json that determine sizes, and the number of elements of the
weights by data type, from the headers of the files.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catalogue import Catalogue, ListedSetting
from recipes import MAX_TOKENS, load_models
from release.address import icon_url, read_slug
from release.plan import ROOT, image_tag
from table import LIBRARIES, SECTIONS

from worker.doctor.candidate import Candidate
from worker.doctor.gpus import Fit, pool_choices
from worker.doctor.memory import judge_fit
from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.settings.values import format_value
from worker.store import File, Origin, Snapshot

# The CUDA version that the base image needs from the host's driver.
CUDA = "13.0"
# The console has its own fields for these settings.
CONSOLE_FIELDS = frozenset({"MODEL_NAME", "HF_TOKEN"})

UNSET_CHOICE = {"value": "", "label": "unset"}

# Small models of well-known families with suitable settings. Each of them fits all GPU pools of the
# listing, because the hub has one list of pools for all presets. Recipes (docs/recipes.md) are for
# other models.
PRESETS: dict[str, dict[str, Any]] = {
    "Qwen3 0.6B": {
        "MODEL_NAME": "Qwen/Qwen3-0.6B",
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "hermes",
        "REASONING_PARSER": "qwen3",
        "DEFAULT_MAX_TOKENS": MAX_TOKENS,
    },
    "Qwen2.5 7B Instruct": {
        "MODEL_NAME": "Qwen/Qwen2.5-7B-Instruct",
        "MAX_MODEL_LEN": 32768,
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "hermes",
        "DEFAULT_MAX_TOKENS": MAX_TOKENS,
    },
    "Llama 3.1 8B Instruct (gated: set the token)": {
        "MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
        "MAX_MODEL_LEN": 16384,
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "llama3_json",
        "DEFAULT_MAX_TOKENS": MAX_TOKENS,
    },
    "BGE small (embeddings)": {"MODEL_NAME": "BAAI/bge-small-en-v1.5", "RUNNER": "pooling"},
}

# A machine with one GPU of any type.
_ONE_GPU = Machine(cpu=False, gpus=(Gpu("", 0),))
# A preset must not wait for a GPU with four times the memory of the smallest suitable one, or pay
# for it.
_MAX_OVERSIZE = 4
# Bytes per element, for the data types of the presets' weights.
_BYTES_PER_ELEMENT = {"BF16": 2, "F32": 4, "U8": 1}
_folders = tempfile.TemporaryDirectory()


class Forms:
    """Both forms, with the settings whose row of the table has ``form``."""

    def __init__(self, catalogue: Catalogue, vllm: str) -> None:
        """Select the settings.

        Args:
            catalogue: All settings.
            vllm: The release of vLLM that the forms are for.
        """
        self._listed = [setting for setting in catalogue.table_settings() if setting.row.form]
        self._unset_names = catalogue.options_to_leave_unset()
        self._vllm = vllm

    def console(self) -> dict[str, Any]:
        """Build ``worker-config.json``, the console's form."""
        settings = [setting for setting in self._listed if setting.name not in CONSOLE_FIELDS]
        version = {
            "imageName": f"llm-worker:{image_tag()}",
            "minimumCudaVersion": CUDA,
            "categories": list(_categories(settings)),
        }
        schema = {setting.name: self._console_field(setting) for setting in settings}
        return {"versions": {self._vllm: version}, "schema": schema}

    def hub(self, **config: str) -> dict[str, Any]:
        """Build ``.runpod/hub.json``, the listing on the hub with its form.

        Args:
            config: More fields of the listing's ``config``, such as ``endpointType``.
        """
        presets = [{"name": name, "defaults": defaults} for name, defaults in PRESETS.items()]
        inputs = [
            {"key": setting.name, "input": self._hub_input(setting)} for setting in self._listed
        ]
        slug = read_slug(ROOT)
        icon = {"iconUrl": icon_url(slug)} if slug else {}
        return {
            "title": "vLLM worker",
            "description": "Serves a language model with vLLM: OpenAI's API, Anthropic's messages, "
            "and a raw form with exact token counts.",
            "type": "serverless",
            "category": "language",
            **icon,
            "config": {
                "runsOn": "GPU",
                **config,
                "containerDiskInGb": 60,
                "gpuCount": 1,
                "gpuIds": ",".join(pools_for(PRESETS.values())),
                "allowedCudaVersions": [CUDA],
                "presets": presets,
                "env": inputs,
            },
        }

    def _console_field(self, setting: ListedSetting) -> dict[str, Any]:
        kind, default = _control(setting), self._form_default(setting)
        field: dict[str, Any] = {
            "env_var_name": setting.name,
            "value": default == "1" if kind == "toggle" else default,
            "title": setting.row.title,
            "description": self._description(setting),
            "required": False,
            "type": kind,
        }
        return field | ({"options": _options(setting, default)} if kind == "select" else {})

    def _hub_input(self, setting: ListedSetting) -> dict[str, Any]:
        control, default = _control(setting), self._form_default(setting)
        kinds = {"text": "string", "select": "string", "number": "number", "toggle": "boolean"}
        field: dict[str, Any] = {
            "name": setting.row.title,
            "type": "huggingface" if setting.name == "MODEL_NAME" else kinds[control],
            "description": self._description(setting),
        }
        if control == "toggle":
            field |= {"default": default == "1", "trueValue": "true", "falseValue": "false"}
        elif default:
            field["default"] = _number(default) if control == "number" else default
        if control == "select":
            field["options"] = _options(setting, default)
        if setting.name == "MODEL_NAME":
            field["required"] = True
        return field | ({"advanced": True} if setting.row.advanced else {})

    def _form_default(self, setting: ListedSetting) -> str:
        if setting.name in self._unset_names:
            return ""
        return setting.default

    def _description(self, setting: ListedSetting) -> str:
        """Return the description of a setting as plain text."""
        is_default_hidden = setting.default and setting.default != self._form_default(setting)
        meaning = setting.row.meaning.replace("`", "")
        return meaning + (f" Default: {setting.default}." if is_default_hidden else "")


def _categories(settings: Iterable[ListedSetting]) -> Iterable[dict[str, Any]]:
    for section in SECTIONS:
        names = [setting.name for setting in settings if setting.row.section == section]
        if names and section != LIBRARIES:
            yield {"title": section, "settings": names}


def _control(setting: ListedSetting) -> str:
    """Return the kind of input; a boolean without a default is a selection, not a switch."""
    if setting.choices or (setting.kind == "boolean" and not setting.default):
        return "select"
    controls = {"boolean": "toggle", "integer": "number", "size": "number", "number": "number"}
    return controls.get(setting.kind, "text")


def _options(setting: ListedSetting, default: str) -> list[dict[str, str]]:
    choices = setting.choices or ("true", "false")
    listed = [{"value": choice, "label": choice} for choice in choices]
    return listed if default else [UNSET_CHOICE, *listed]


def _number(value: str) -> float | int:
    return int(value) if value.isdecimal() else float(value)


def pools_for(presets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pools whose GPUs all hold each of the presets with its full context.

    The smallest come first; much larger ones are left out.
    """
    options = Options(_ONE_GPU)
    models = [candidate(preset, options) for preset in presets]
    suitable = [
        pool
        for pool in pool_choices()
        if all(judge_fit(model, pool).fit is Fit.FITS for model in models)
    ]
    return [
        pool.name
        for pool in suitable
        if pool.smallest_gpu.memory < _MAX_OVERSIZE * suitable[0].smallest_gpu.memory
    ]


def candidate(settings: Mapping[str, Any], options: Options) -> Candidate:
    """Return the engine that settings describe, for a model in ``presets.json``.

    Args:
        settings: Values by name.
        options: vLLM's options on the machine of the engine.
    """
    values = {name: format_value(value) for name, value in settings.items()}
    name = values.pop("MODEL_NAME")
    model = load_models()[name]
    # vLLM reads a configuration from a directory.
    folder = Path(_folders.name, name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model["config"]))
    size = sum(_BYTES_PER_ELEMENT[kind] * count for kind, count in model["tensors"].items())
    snapshot = Snapshot(
        model=name,
        origin=Origin.DOWNLOAD,
        directory=Path(__file__).parent / "not there",
        small_files=folder,
        weights=(File("model.safetensors", size),),
        config=model["config"],
        tensors=model["tensors"],
    )
    engine = options.parse_engine_settings({"MODEL": name, **values}).arguments
    return Candidate(engine.with_options(model=str(folder), tokenizer=str(folder)), snapshot)
