"""Checks of options that vLLM takes one by one, but that can't work together.

Some of them vLLM itself would report late, in other words, or not at all.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from worker.engine.arguments import EngineArguments
from worker.engine.options.option import one_of
from worker.engine.seam.locations import find
from worker.engine.seam.translation import START_ERRORS
from worker.errors import in_settings
from worker.settings.mistakes import Mistake
from worker.settings.values import is_directory, redact, unfit

# In place of a parser's name: the one that suits the model.
AUTO = "auto"

# Options that have no effect unless another one is set.
NEEDS = {
    "FULLY_SHARDED_LORAS": "ENABLE_LORA",
    "LORA_DTYPE": "ENABLE_LORA",
    "MAX_CPU_LORAS": "ENABLE_LORA",
    "MAX_LORAS": "ENABLE_LORA",
    "MAX_LORA_RANK": "ENABLE_LORA",
    "TOOL_CALL_PARSER": "ENABLE_AUTO_TOOL_CHOICE",
}


def idle(arguments: EngineArguments) -> dict[str, str]:
    """Return the reasons why options have no effect next to others, by the settings' names."""
    return {
        arguments.prefix + name: f"it needs {arguments.prefix}{needed}"
        for name, needed in NEEDS.items()
        if not getattr(arguments.vllm, needed.lower())
    }


def contradictions(arguments: EngineArguments, given: Mapping[str, str]) -> Iterator[Mistake]:
    """Find options that can't work together, and paths that lead nowhere.

    Args:
        arguments: of one engine.
        given: the options that the operator set, as text.

    Yields:
        Mistakes with the options' names, without the prefix of the engine's settings.
    """
    options = arguments.vllm
    yield from _parsers(options, given)
    yield from _adapters(arguments, given)
    if options.max_model_len == 0:
        advice = "a whole number above 0, or -1: the longest that fits"
        yield Mistake("MAX_MODEL_LEN", given["MAX_MODEL_LEN"], advice, "4096")
    for name in ("GENERATION_CONFIG", "HF_CONFIG_PATH"):
        place = given.get(name, "")
        if place.startswith(("/", "./", "../", "~")) and not is_directory(place):
            yield Mistake(name, place, "there is no such directory")
    if reason := unfit(tokenizer := given.get("TOKENIZER", ".")):
        yield Mistake("TOKENIZER", tokenizer, reason)
    if (template := options.chat_template) and (reason := broken(template)):
        beginning = template if len(template) < 80 else f"{template[:77]}..."
        yield Mistake("CHAT_TEMPLATE", beginning, reason)
    yield from _refused_by_vllm(options, given)


def text_of(template: str) -> str:
    """Return the text of a chat template, which may be given by the path of its file.

    Raises:
        OSError: the file can't be read.
    """
    return template if _inline(template) else Path(template).read_text()


def _inline(template: str) -> bool:
    return any(sign in template for sign in "{\n")


def broken(template: str) -> str | None:
    """Return what is wrong with a chat template, or with the path of one; None if it compiles."""
    try:
        if not _inline(template) and not Path(template).is_file():
            return "neither the path of a file nor a Jinja template"
        # The same Jinja environment as for a conversation.
        render_jinja_template(conversations=[], chat_template=text_of(template))
    except jinja2.TemplateSyntaxError as error:
        return f"no Jinja template: {error.message}, in line {error.lineno}"
    except (OSError, UnicodeError) as error:
        return f"can't be read: {error}"
    return None


def _adapters(arguments: EngineArguments, given: Mapping[str, str]) -> Iterator[Mistake]:
    options, prefix = arguments.vllm, arguments.prefix
    modules = options.lora_modules or ()
    names = [module.name for module in modules]
    wrong = {
        f"adapters need {prefix}ENABLE_LORA=1": not options.enable_lora,
        "two adapters have one name": len({*names}) < len(names),
        "an adapter has a name and a path, which are texts": not all(
            isinstance(value, str) and value
            for module in modules
            for value in (module.name, module.path)
        ),
    }
    for advice, is_so in wrong.items() if modules else ():
        if is_so:
            yield Mistake("LORA_MODULES", redact(given["LORA_MODULES"]), advice, "sql=org/sql-lora")
    most = options.max_cpu_loras
    if options.enable_lora and most is not None and most < options.max_loras:
        advice = f"at least {prefix}MAX_LORAS={options.max_loras}"
        yield Mistake("MAX_CPU_LORAS", given["MAX_CPU_LORAS"], advice, str(options.max_loras))


def _parsers(options: argparse.Namespace, given: Mapping[str, str]) -> Iterator[Mistake]:
    """Check that vLLM has the parsers, unless a plugin may bring them."""
    for name, manager, plugin in (
        ("TOOL_CALL_PARSER", "ToolParserManager", options.tool_parser_plugin),
        ("REASONING_PARSER", "ReasoningParserManager", options.reasoning_parser_plugin),
    ):
        known = sorted(find(manager).list_registered())
        if name in given and not plugin and given[name] not in (AUTO, *known):
            yield Mistake(name, given[name], one_of([AUTO, *known], given[name]))
        if plugin and plugin.endswith(".py") and not Path(plugin).is_file():
            plugin_name = name.replace("CALL_", "") + "_PLUGIN"
            yield Mistake(plugin_name, plugin, "there is no such file")


def _refused_by_vllm(options: argparse.Namespace, given: Mapping[str, str]) -> Iterator[Mistake]:
    """Run vLLM's own checks, and find the option that its message names."""
    # The check of a chat template above says more.
    rest = argparse.Namespace(**{**vars(options), "chat_template": None})
    try:
        find("validate_parsed_serve_args")(rest)
    except START_ERRORS as error:
        message = in_settings(str(error)).removeprefix("Error: ")
        named = [name for name in given if re.search(rf"\b{name}\b", message)]
        name = named[0] if named else "MODEL"
        yield Mistake(name, given.get(name), message)
