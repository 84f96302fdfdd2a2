"""Checks that involve several options, the file system or the machine.

vLLM itself accepts each of the options alone, and would report some of the mistakes late, in
unclear words or not at all. Each check yields mistakes with the options' names, without the prefix
of the engine's settings. ``worker.engine.start.tables`` lists the checks in their order.
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
from worker.engine.options.automatic import PARALLEL_SIZES
from worker.engine.options.option import describe_choices
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.translation import START_ERRORS
from worker.errors import replace_options_by_settings
from worker.settings.mistakes import Mistake
from worker.settings.values import is_directory, model_name_problem, redact_json_and_urls

# The value of a parser option with which the worker selects the parser for the model.
AUTO = "auto"
TOOL_PARSER, REASONING_PARSER = "TOOL_CALL_PARSER", "REASONING_PARSER"
# Names of vLLM's registries of parsers, by option.
PARSER_REGISTRIES = {TOOL_PARSER: "ToolParserManager", REASONING_PARSER: "ReasoningParserManager"}


def check_parsers(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that plugin files exist, and that vLLM has the parsers unless a plugin may add them."""
    values = arguments.operator_options
    for name, registry in PARSER_REGISTRIES.items():
        plugin_name = name.replace("CALL_", "") + "_PLUGIN"
        plugin = getattr(arguments.vllm_args, plugin_name.lower())
        known = sorted(import_from_vllm(registry).list_registered())
        if name in values and not plugin and values[name] not in (AUTO, *known):
            advice = describe_choices([AUTO, *known], values[name])
            yield Mistake(name, values[name], advice, AUTO)
        if plugin and plugin.endswith(".py") and not Path(plugin).is_file():
            yield Mistake(plugin_name, plugin, "there is no such file")


def check_adapter_options(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that LORA_MODULES are valid and allowed by other options, and check MAX_CPU_LORAS."""
    options, texts, prefix = arguments.vllm_args, arguments.operator_options, arguments.prefix
    modules = options.lora_modules or ()
    names = [module.name for module in modules]
    violations = {
        f"adapters need {prefix}ENABLE_LORA=1": not options.enable_lora,
        "two adapters have one name": len({*names}) < len(names),
        "an adapter has a name and a path, which are texts": not all(
            isinstance(value, str) and value
            for module in modules
            for value in (module.name, module.path)
        ),
    }
    for advice, is_violated in violations.items() if modules else ():
        if is_violated:
            yield Mistake(
                "LORA_MODULES",
                redact_json_and_urls(texts["LORA_MODULES"]),
                advice,
                "sql=org/sql-lora",
            )
    max_cpu_loras = options.max_cpu_loras
    if options.enable_lora and max_cpu_loras is not None and max_cpu_loras < options.max_loras:
        advice = f"at least {prefix}MAX_LORAS={options.max_loras}"
        yield Mistake("MAX_CPU_LORAS", texts["MAX_CPU_LORAS"], advice, str(options.max_loras))


def check_max_model_len_not_zero(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    if arguments.vllm_args.max_model_len == 0:
        advice = "a whole number above 0, or -1: the longest that fits"
        yield Mistake("MAX_MODEL_LEN", arguments.operator_options["MAX_MODEL_LEN"], advice, "4096")


def check_directories_and_names(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that the directories in options exist, and that the tokenizer's name is valid."""
    for name in ("GENERATION_CONFIG", "HF_CONFIG_PATH"):
        path = arguments.operator_options.get(name, "")
        if path.startswith(("/", "./", "../", "~")) and not is_directory(path):
            yield Mistake(name, path, "there is no such directory")
    if reason := model_name_problem(tokenizer := arguments.operator_options.get("TOKENIZER", ".")):
        yield Mistake("TOKENIZER", tokenizer, reason)


def check_chat_template(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Check that the chat template, which may be a path, can be read and compiles."""
    template = arguments.vllm_args.chat_template
    if not template:
        return
    reason = ""
    try:
        if not _is_inline_template(template) and not Path(template).is_file():
            reason = "neither the path of a file nor a Jinja template"
        else:
            # vLLM renders conversations in the same Jinja environment, and fails in the same way.
            render_jinja_template(conversations=[], chat_template=chat_template_text(template))
    except jinja2.TemplateSyntaxError as error:
        reason = f"not a valid Jinja template: {error.message}, in line {error.lineno}"
    except (OSError, UnicodeError) as error:
        reason = f"can't be read: {error}"
    if reason:
        excerpt = template if len(template) < 80 else f"{template[:77]}..."
        yield Mistake("CHAT_TEMPLATE", excerpt, reason)


def run_vllm_checks(arguments: EngineArguments, _: Machine) -> Iterator[Mistake]:
    """Run vLLM's own checks; a mistake names a set option in vLLM's message, or else MODEL."""
    # The chat template has a separate check with a better message.
    options = argparse.Namespace(**{**vars(arguments.vllm_args), "chat_template": None})
    try:
        import_from_vllm("validate_parsed_serve_args")(options)
    except START_ERRORS as error:
        message = replace_options_by_settings(str(error)).removeprefix("Error: ")
        names = [name for name in arguments.operator_options if re.search(rf"\b{name}\b", message)]
        name = names[0] if names else "MODEL"
        yield Mistake(name, arguments.operator_options.get(name), message)


def check_gpu_count(arguments: EngineArguments, machine: Machine) -> Iterator[Mistake]:
    sizes = {name: getattr(arguments.vllm_args, name.lower()) for name in PARALLEL_SIZES}
    required, gpus = math.prod(sizes.values()), len(machine.gpus)
    if machine.cpu or required <= gpus:
        return
    supply = {0: "there is no GPU", 1: "there is 1 GPU"}.get(gpus, f"there are {gpus} GPUs")
    choice = f"choose GPU={machine.gpu_choice}x{required}" if machine.gpu_choice else ""
    more = choice or f"give each worker {required} GPUs"
    for name, size in sizes.items():
        if size > 1:
            advice = f"{supply}, and {required} are needed: {more}, or leave it unset"
            limit = max(gpus * size // required, 1)
            yield Mistake(name, arguments.operator_options.get(name, str(size)), advice, str(limit))


def chat_template_text(template: str) -> str:
    return template if _is_inline_template(template) else Path(template).read_text()


def _is_inline_template(template: str) -> bool:
    return any(sign in template for sign in "{\n")
