"""Options that vLLM takes one by one, but that can't work together, or not on this machine."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from worker.engine.locations import find
from worker.engine.machine import Machine
from worker.engine.option import one_of
from worker.errors import Mistake
from worker.settings.values import shown


def contradictions(
    arguments: Namespace, given: Mapping[str, str], on: Machine, prefix: str = ""
) -> Iterator[Mistake]:
    """Find what vLLM itself would tell late, in other words, or not at all.

    Args:
        arguments: vLLM's.
        given: the options that the operator set.
        on: what the engine will run on.
        prefix: what the operator wrote before the options' names.
    """
    yield from _parallelism(arguments, given, on)
    yield from _parsers(arguments, given)
    if arguments.lora_modules and not arguments.enable_lora:
        advice = f"adapters need {prefix}ENABLE_LORA=1"
        yield Mistake("LORA_MODULES", shown(given["LORA_MODULES"]), advice)
    for name in ("TOKENIZER", "HF_CONFIG_PATH"):
        place = given.get(name, "")
        if place.startswith(("/", "./", "../", "~")) and not Path(place).exists():
            yield Mistake(name, place, "there is no such directory")
    if (template := arguments.chat_template) and (told := broken(template)):
        begun = template if len(template) < 80 else f"{template[:77]}..."
        yield Mistake("CHAT_TEMPLATE", begun, told)


def broken(template: str) -> str | None:
    """Say what is wrong with a chat template, or with the path of one, as Jinja compiles it."""
    inline = any(sign in template for sign in "{\n")
    if not inline and not Path(template).is_file():
        return "neither the path of a file nor a Jinja template"
    try:
        # The same environment as when a conversation is rendered, but no conversation.
        source = template if inline else Path(template).read_text()
        render_jinja_template(conversations=[], chat_template=source)
    except jinja2.TemplateSyntaxError as error:
        return f"no Jinja template: {error.message}, in line {error.lineno}"
    except (OSError, UnicodeError) as error:
        return f"can't be read: {error}"
    return None


def _parallelism(arguments: Namespace, given: Mapping[str, str], on: Machine) -> Iterator[Mistake]:
    sizes = {
        "TENSOR_PARALLEL_SIZE": arguments.tensor_parallel_size,
        "PIPELINE_PARALLEL_SIZE": arguments.pipeline_parallel_size,
        "DATA_PARALLEL_SIZE": arguments.data_parallel_size,
    }
    wanted = 1
    for size in sizes.values():
        wanted *= size
    if on.cpu or wanted <= len(on.gpus) or arguments.distributed_executor_backend == "ray":
        return
    there = {0: "there is no GPU", 1: "there is 1 GPU"}.get(
        len(on.gpus), f"there are {len(on.gpus)} GPUs"
    )
    for name, size in sizes.items():
        if size > 1:
            advice = f"{there}, and {wanted} would be needed; unset, it is what fits"
            yield Mistake(name, given.get(name, str(size)), advice, str(len(on.gpus) or 1))


def _parsers(arguments: Namespace, given: Mapping[str, str]) -> Iterator[Mistake]:
    """Look parsers up, but for those that a plugin will bring."""
    for name, manager, plugin in (
        ("TOOL_CALL_PARSER", "ToolParserManager", arguments.tool_parser_plugin),
        ("REASONING_PARSER", "ReasoningParserManager", arguments.reasoning_parser_plugin),
    ):
        known = sorted(find(manager).list_registered())
        if name in given and not plugin and given[name] not in known:
            yield Mistake(name, given[name], one_of(known, given[name]))
        if plugin and plugin.endswith(".py") and not Path(plugin).is_file():
            plugin_name = name.replace("CALL_", "") + "_PLUGIN"
            yield Mistake(plugin_name, plugin, "there is no such file")
