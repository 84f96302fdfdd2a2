"""Checks of options that vLLM takes one by one: together, against the disk, and the machine.

vLLM itself would report some of these mistakes late, in other words, or not at all. Each check
yields mistakes with the options' names, without the prefix of the engine's settings;
``worker.engine.start.tables`` lists them in their order.
"""

import argparse
import math
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.options.automatic import SIZES
from worker.engine.options.option import one_of
from worker.engine.seam.locations import find
from worker.engine.seam.translation import START_ERRORS
from worker.errors import in_settings
from worker.settings.mistakes import Mistake
from worker.settings.values import is_directory, redact, unfit

# In place of a parser's name: the one that suits the model.
AUTO = "auto"
TOOLS, REASONING = "TOOL_CALL_PARSER", "REASONING_PARSER"
# vLLM's registries of parsers.
MANAGERS = {TOOLS: "ToolParserManager", REASONING: "ReasoningParserManager"}


def parsers(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that vLLM has the parsers, unless a plugin may bring them."""
    given = arguments.given
    for name, manager in MANAGERS.items():
        plugin_name = name.replace("CALL_", "") + "_PLUGIN"
        plugin = getattr(arguments.vllm, plugin_name.lower())
        known = sorted(find(manager).list_registered())
        if name in given and not plugin and given[name] not in (AUTO, *known):
            yield Mistake(name, given[name], one_of([AUTO, *known], given[name]))
        if plugin and plugin.endswith(".py") and not Path(plugin).is_file():
            yield Mistake(plugin_name, plugin, "there is no such file")


def adapters(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that LORA_MODULES are adapters that the other options allow."""
    options, given, prefix = arguments.vllm, arguments.given, arguments.prefix
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


def context(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that the context has tokens."""
    if arguments.vllm.max_model_len == 0:
        advice = "a whole number above 0, or -1: the longest that fits"
        yield Mistake("MAX_MODEL_LEN", arguments.given["MAX_MODEL_LEN"], advice, "4096")


def directories(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that there are the directories that options name, and a tokenizer's name is one."""
    for name in ("GENERATION_CONFIG", "HF_CONFIG_PATH"):
        place = arguments.given.get(name, "")
        if place.startswith(("/", "./", "../", "~")) and not is_directory(place):
            yield Mistake(name, place, "there is no such directory")
    if reason := unfit(tokenizer := arguments.given.get("TOKENIZER", ".")):
        yield Mistake("TOKENIZER", tokenizer, reason)


def chat_template(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that the chat template is one, or the path of one, and compiles."""
    template = arguments.vllm.chat_template
    if not template:
        return
    reason = ""
    try:
        if not _inline(template) and not Path(template).is_file():
            reason = "neither the path of a file nor a Jinja template"
        else:
            # The same Jinja environment as for a conversation.
            render_jinja_template(conversations=[], chat_template=text_of(template))
    except jinja2.TemplateSyntaxError as error:
        reason = f"no Jinja template: {error.message}, in line {error.lineno}"
    except (OSError, UnicodeError) as error:
        reason = f"can't be read: {error}"
    if reason:
        beginning = template if len(template) < 80 else f"{template[:77]}..."
        yield Mistake("CHAT_TEMPLATE", beginning, reason)


def refused_by_vllm(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Run vLLM's own checks, and find the option that its message names."""
    # The check of a chat template above says more.
    rest = argparse.Namespace(**{**vars(arguments.vllm), "chat_template": None})
    try:
        find("validate_parsed_serve_args")(rest)
    except START_ERRORS as error:
        message = in_settings(str(error)).removeprefix("Error: ")
        named = [name for name in arguments.given if re.search(rf"\b{name}\b", message)]
        name = named[0] if named else "MODEL"
        yield Mistake(name, arguments.given.get(name), message)


def too_many_gpus(arguments: EngineArguments, machine: Machine) -> Iterator[Mistake]:
    """Check that the machine has as many GPUs as the engine is to run on."""
    sizes = {name: getattr(arguments.vllm, name.lower()) for name in SIZES}
    wanted, gpus = math.prod(sizes.values()), len(machine.gpus)
    if machine.cpu or wanted <= gpus:
        return
    there = {0: "there is no GPU", 1: "there is 1 GPU"}.get(gpus, f"there are {gpus} GPUs")
    for name, size in sizes.items():
        if size > 1:
            advice = f"{there}, and {wanted} would be needed; unset, it is what fits"
            fits = max(gpus * size // wanted, 1)
            yield Mistake(name, arguments.given.get(name, str(size)), advice, str(fits))


def text_of(template: str) -> str:
    """Return the text of a chat template, which may be given by the path of its file.

    Raises:
        OSError: the file can't be read.
    """
    return template if _inline(template) else Path(template).read_text()


def _inline(template: str) -> bool:
    return any(sign in template for sign in "{\n")
