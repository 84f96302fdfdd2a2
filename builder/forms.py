"""The forms in which the platform asks for settings: its console's, and its hub's."""

from collections.abc import Iterable
from typing import Any

from listed import Catalogue, Listed
from table import LIBRARIES, SECTIONS

# Of the worker, in the name of its image.
RELEASE = "0.1"
# What the base image needs of a host's driver.
CUDA = "13.0"
# The console asks for these in a place of their own.
ASKED_ELSEWHERE = frozenset({"MODEL_NAME", "HF_TOKEN"})

UNSET = {"value": "", "label": "unset"}

# Small models of well-known families, and what each does well with.
PRESETS: dict[str, dict[str, Any]] = {
    "Qwen3 0.6B": {
        "MODEL_NAME": "Qwen/Qwen3-0.6B",
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "hermes",
        "REASONING_PARSER": "qwen3",
    },
    "Qwen2.5 7B Instruct": {
        "MODEL_NAME": "Qwen/Qwen2.5-7B-Instruct",
        "MAX_MODEL_LEN": 32768,
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "hermes",
    },
    "Llama 3.1 8B Instruct (gated: set the token)": {
        "MODEL_NAME": "meta-llama/Llama-3.1-8B-Instruct",
        "MAX_MODEL_LEN": 16384,
        "ENABLE_AUTO_TOOL_CHOICE": True,
        "TOOL_CALL_PARSER": "llama3_json",
    },
    "BGE small (embeddings)": {"MODEL_NAME": "BAAI/bge-small-en-v1.5", "RUNNER": "pooling"},
}


class Forms:
    """Both forms, of the settings that the table has for them."""

    def __init__(self, catalogue: Catalogue, vllm: str) -> None:
        """Select the settings.

        Args:
            catalogue: all there are.
            vllm: the release of vLLM that they are for.
        """
        self._listed = [each for each in catalogue.explained() if each.row and each.row.form]
        self._left_open = catalogue.left_open()
        self._vllm = vllm

    def console(self) -> dict[str, Any]:
        """Make ``worker-config.json``: the console's form."""
        asked = [each for each in self._listed if each.name not in ASKED_ELSEWHERE]
        version = {
            "imageName": f"llm-worker:{RELEASE}",
            "minimumCudaVersion": CUDA,
            "categories": list(_categories(asked)),
        }
        schema = {each.name: self._console_field(each) for each in asked}
        return {"versions": {self._vllm: version}, "schema": schema}

    def hub(self) -> dict[str, Any]:
        """Make ``.runpod/hub.json``: the listing on the hub, with its form."""
        presets = [{"name": name, "defaults": defaults} for name, defaults in PRESETS.items()]
        inputs = [{"key": each.name, "input": self._hub_input(each)} for each in self._listed]
        return {
            "title": "vLLM worker",
            "description": "Serves a language model with vLLM inside the worker's own process: "
            "OpenAI's API and a raw form, streamed in chunks that grow.",
            "type": "serverless",
            "category": "language",
            "config": {
                "runsOn": "GPU",
                "containerDiskInGb": 60,
                "gpuCount": 1,
                "gpuIds": "ADA_24,AMPERE_24,ADA_48_PRO,AMPERE_48,ADA_80_PRO,AMPERE_80",
                "allowedCudaVersions": [CUDA],
                "presets": presets,
                "env": inputs,
            },
        }

    def _console_field(self, each: Listed) -> dict[str, Any]:
        kind, default = _control(each), self._shown(each)
        field: dict[str, Any] = {
            "env_var_name": each.name,
            "value": default == "1" if kind == "toggle" else default,
            "title": each.row.title if each.row else each.name,
            "description": self._description(each),
            "required": False,
            "type": kind,
        }
        return field | ({"options": _options(each, default)} if kind == "select" else {})

    def _hub_input(self, each: Listed) -> dict[str, Any]:
        control, default = _control(each), self._shown(each)
        kinds = {"text": "string", "select": "string", "number": "number", "toggle": "boolean"}
        field: dict[str, Any] = {
            "name": each.row.title if each.row else each.name,
            "type": "huggingface" if each.name == "MODEL_NAME" else kinds[control],
            "description": self._description(each),
        }
        if control == "toggle":
            field |= {"default": default == "1", "trueValue": "true", "falseValue": "false"}
        elif default:
            field["default"] = _number(default) if control == "number" else default
        if control == "select":
            field["options"] = _options(each, default)
        if each.name == "MODEL_NAME":
            field["required"] = True
        return field | ({"advanced": True} if each.row and each.row.advanced else {})

    def _shown(self, each: Listed) -> str:
        return "" if each.name in self._left_open else each.default

    def _description(self, each: Listed) -> str:
        """Say what a setting is for, without the marks of Markdown."""
        meaning = each.row.meaning if each.row else ""
        blank = each.default and not self._shown(each)
        return meaning.replace("`", "") + (f" Default: {each.default}." if blank else "")


def _categories(asked: Iterable[Listed]) -> Iterable[dict[str, Any]]:
    for section in SECTIONS:
        names = [each.name for each in asked if each.row and each.row.section == section]
        if names and section != LIBRARIES:
            yield {"title": section, "settings": names}


def _control(each: Listed) -> str:
    """Choose how a setting is asked for; what vLLM decides if it is unset can't be a switch."""
    if each.choices or (each.kind == "boolean" and not each.default):
        return "select"
    controls = {"boolean": "toggle", "integer": "number", "size": "number", "number": "number"}
    return controls.get(each.kind, "text")


def _options(each: Listed, default: str) -> list[dict[str, str]]:
    choices = each.choices or ("true", "false")
    listed = [{"value": choice, "label": choice} for choice in choices]
    return listed if default else [UNSET, *listed]


def _number(value: str) -> float | int:
    return int(value) if value.isdecimal() else float(value)
