"""Options that vLLM takes one by one, but that can't work together, or not on this machine."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from worker.engine.locations import find
from worker.engine.machine import Machine
from worker.engine.options.option import one_of
from worker.errors import Mistake
from worker.settings.values import directory, shown, unfit


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
    yield from _adapters(arguments, given, prefix)
    if arguments.max_model_len == 0:
        advice = "a whole number above 0, or -1: the longest that fits"
        yield Mistake("MAX_MODEL_LEN", given["MAX_MODEL_LEN"], advice, "4096")
    for name in ("GENERATION_CONFIG", "HF_CONFIG_PATH"):
        place = given.get(name, "")
        if place.startswith(("/", "./", "../", "~")) and not directory(place):
            yield Mistake(name, place, "there is no such directory")
    if told := unfit(tokenizer := given.get("TOKENIZER", ".")):
        yield Mistake("TOKENIZER", tokenizer, told)
    if (template := arguments.chat_template) and (told := broken(template)):
        begun = template if len(template) < 80 else f"{template[:77]}..."
        yield Mistake("CHAT_TEMPLATE", begun, told)


def broken(template: str) -> str | None:
    """Say what is wrong with a chat template, or with the path of one, as Jinja compiles it."""
    inline = any(sign in template for sign in "{\n")
    try:
        if not inline and not Path(template).is_file():
            return "neither the path of a file nor a Jinja template"
        # The same environment as when a conversation is rendered, but no conversation.
        source = template if inline else Path(template).read_text()
        render_jinja_template(conversations=[], chat_template=source)
    except jinja2.TemplateSyntaxError as error:
        return f"no Jinja template: {error.message}, in line {error.lineno}"
    except (OSError, UnicodeError) as error:
        return f"can't be read: {error}"
    return None


def _adapters(arguments: Namespace, given: Mapping[str, str], prefix: str) -> Iterator[Mistake]:
    adapters = arguments.lora_modules or ()
    names = [each.name for each in adapters]
    wrong = {
        f"adapters need {prefix}ENABLE_LORA=1": not arguments.enable_lora,
        "two adapters have one name": len({*names}) < len(names),
        "an adapter has a name and a path, which are texts": not all(
            isinstance(each, str) and each for one in adapters for each in (one.name, one.path)
        ),
    }
    for advice, is_so in wrong.items() if adapters else ():
        if is_so:
            yield Mistake("LORA_MODULES", shown(given["LORA_MODULES"]), advice, "sql=org/sql-lora")
    most = arguments.max_cpu_loras
    if arguments.enable_lora and most is not None and most < arguments.max_loras:
        advice = f"at least {prefix}MAX_LORAS={arguments.max_loras}"
        yield Mistake("MAX_CPU_LORAS", given["MAX_CPU_LORAS"], advice, str(arguments.max_loras))


def _parallelism(arguments: Namespace, given: Mapping[str, str], on: Machine) -> Iterator[Mistake]:
    sizes = {
        "TENSOR_PARALLEL_SIZE": arguments.tensor_parallel_size,
        "PIPELINE_PARALLEL_SIZE": arguments.pipeline_parallel_size,
        "DATA_PARALLEL_SIZE": arguments.data_parallel_size,
        "PREFILL_CONTEXT_PARALLEL_SIZE": arguments.prefill_context_parallel_size,
    }
    wanted = 1
    for size in sizes.values():
        wanted *= size
    if on.cpu or wanted <= len(on.gpus):
        return
    there = {0: "there is no GPU", 1: "there is 1 GPU"}.get(
        len(on.gpus), f"there are {len(on.gpus)} GPUs"
    )
    for name, size in sizes.items():
        if size > 1:
            advice = f"{there}, and {wanted} would be needed; unset, it is what fits"
            fits = len(on.gpus) * size // wanted
            yield Mistake(name, given.get(name, str(size)), advice, str(max(fits, 1)))


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
