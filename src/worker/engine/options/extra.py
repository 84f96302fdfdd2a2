"""VLLM_EXTRA_ARGS: options written as on vLLM's command line, which win over variables."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from worker.engine.options.excluded import DENIED
from worker.engine.options.option import WRONG, Option, why
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.names import removed
from worker.settings.sources import EXTRA_ARGS, EXTRA_EXAMPLE
from worker.settings.values import redact_line, text


def read_extra(
    words: Sequence[str], parser: argparse.ArgumentParser, options: Mapping[str, Option]
) -> dict[str, str]:
    """Return the options that command line words set, and their values as text.

    Args:
        words: of VLLM_EXTRA_ARGS.
        parser: vLLM's, which raises ValueError.
        options: all that a worker has, by name.

    Raises:
        SettingsError: the parser refuses the words, or one of them makes no sense in a worker.
    """
    values: dict[str, Any] = {}
    advice = ""
    try:
        values = _parse(words, parser, options)
    except WRONG as refused:
        advice = _refusal(refused, options)
    for name, value in values.items():
        option = options[name]
        try:
            option.check("", value)
        except WRONG as refused:
            advice = f"{option.flag}: {option.advice(why(refused), str(value))}"
    if advice:
        line = redact_line(shlex.join(words))
        raise SettingsError([Mistake(EXTRA_ARGS, line, advice, EXTRA_EXAMPLE)])
    return {name: text(value) for name, value in values.items()}


def _parse(
    words: Sequence[str], parser: argparse.ArgumentParser, options: Mapping[str, Option]
) -> dict[str, Any]:
    denied = {
        flag
        for action in parser._actions
        for flag in action.option_strings
        if action.dest in DENIED
    }
    flags = {word.partition("=")[0].replace("_", "-") for word in words}
    # Before the parser acts on them: it prints help, and reads the file of --config.
    if refused := flags & {*denied, "--config"}:
        raise ValueError(f"a worker does not take {', '.join(sorted(refused))}")
    unset = object()
    dests = {option.action.dest: unset for option in options.values()}
    parsed = vars(parser.parse_args([*words], argparse.Namespace(**dests)))
    if parsed["model_tag"]:
        raise ValueError(f"unrecognized arguments: {parsed['model_tag']}")
    return {dest.upper(): parsed[dest] for dest in dests if parsed[dest] is not unset}


def _refusal(refused: Exception, options: Mapping[str, Option]) -> str:
    """Return the parser's message, with what is accepted by the option that it names."""
    named = re.match(r"argument (?:\S+/)?(--[\w-]+)", str(refused))
    for option in options.values():
        if named and named[1] in option.action.option_strings:
            return f"{named[1]}: {option.advice(why(refused), '')}"
    message, unknown, rest = str(refused).partition("unrecognized arguments: ")
    if not unknown:
        return why(refused) or message
    names = re.findall(r"--([\w-]+)", rest)
    gone = {name: removed(name.replace("-", "_").upper()) for name in names}
    since = [f"--{name}: {reason}" for name, reason in gone.items() if reason]
    return "; ".join([unknown + redact_line(rest), *since])
