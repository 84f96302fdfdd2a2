"""vLLM's options as settings: the installed vLLM's parser says which there are."""

import argparse
import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import vllm.config

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine, this_machine
from worker.engine.options.automatic import GPU_SHARE, automatic, served_names
from worker.engine.options.combinations import AUTO
from worker.engine.options.excluded import DENIED, IDLE, NEEDS, REFUSED
from worker.engine.options.option import WRONG, Option, why
from worker.engine.seam.locations import find
from worker.engine.variables import NAMES
from worker.settings.mistakes import Mistake
from worker.settings.names import EMBEDDER, removed
from worker.settings.sources import EXTRA_ARGS, EXTRA_EXAMPLE
from worker.settings.values import redact, redact_line, text

# Values that consoles write for an option that is unset.
UNSET = {("MAX_NUM_BATCHED_TOKENS", "0"), ("LORA_MODULES", "[]")}


class _Parser(find("FlexibleArgumentParser")):  # type: ignore[misc]  # find returns Any
    """vLLM's parser, but a wrong value is an exception instead of 300 lines and an exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class Parsed(NamedTuple):
    """An engine's arguments without the wrong values, and a mistake for each of these.

    Mistakes have the options' names, without the prefix of the engine's settings.
    """

    arguments: EngineArguments
    mistakes: list[Mistake]


class Options:
    """The options of the installed vLLM that a worker has, by upper-case name.

    ``variables`` are those of the environment that vLLM reads itself.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        """Ask vLLM for its options; the engines will run on this machine by default."""
        self.machine = machine or this_machine()
        self._parser = find("make_arg_parser")(_Parser(allow_abbrev=False))
        # The parser has a group of options for each configuration class.
        self._options = {
            action.dest.upper(): Option(action, getattr(vllm.config, group.title or "", None))
            for group in self._parser._action_groups
            for action in group._group_actions
            if action.option_strings and action.dest not in DENIED
        }
        self.names = frozenset(self._options)
        self.variables = NAMES

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def idle(self, engines: Sequence[EngineArguments]) -> dict[str, str]:
        """Return the reasons why some options have no effect, by the settings' names."""
        reasons = {
            prefix + dest.upper(): reason
            for prefix in ("", EMBEDDER)
            for dest, reason in (REFUSED | IDLE).items()
        }
        for arguments in engines:
            for name, needed in NEEDS.items():
                if not getattr(arguments.vllm, needed.lower()):
                    reasons[arguments.prefix + name] = f"it needs {arguments.prefix}{needed}"
        return reasons

    def parse(
        self,
        values: Mapping[str, str],
        prefix: str = "",
        gpu_share: float = GPU_SHARE,
        extra: Sequence[str] = (),
    ) -> Parsed:
        """Turn variables into vLLM's own arguments, each value on its own.

        Args:
            values: non-blank texts by the options' names (``Given.main``); other names are
                ignored.
            prefix: of the names of the engine's settings.
            gpu_share: share of a GPU's memory, where it is unset.
            extra: words of VLLM_EXTRA_ARGS, which win over the values.
        """
        mistakes: list[Mistake] = []
        right = self._right(values, mistakes)
        from_extra = self._from_extra(extra, mistakes)
        given = right | from_extra
        defaults = automatic(given, self.machine, gpu_share)
        # Defaults may also be of environment variables.
        chosen = {one.name: one.value for one in defaults if one.name in self._options}
        words = [
            word
            for name, value in {**right, **chosen}.items()
            if name not in from_extra
            for word in self._options[name].words(value)
        ]
        if from_extra:
            words += extra
        # vLLM writes into some of its defaults, which two engines would share.
        options: argparse.Namespace = copy.deepcopy(self._parser.parse_args(words))
        options.served_model_name = served_names(options)
        # Set, it would also stop the metrics; the worker decides what is logged.
        options.disable_log_stats = False
        if "ENABLE_AUTO_TOOL_CHOICE" not in given:
            # Where the model has no parser, the start turns it off again.
            options.enable_auto_tool_choice = options.tool_call_parser == AUTO
        arguments = EngineArguments(
            vllm=options,
            model_name=options.model,
            prefix=prefix,
            given=given,
            extra=frozenset(from_extra),
            defaults=tuple(defaults),
        )
        return Parsed(arguments, mistakes)

    def _right(self, values: Mapping[str, str], mistakes: list[Mistake]) -> dict[str, str]:
        """Check each value on its own, and return those of options that accept theirs."""
        right = {}
        for name, value in values.items():
            if name not in self._options or (name, value) in UNSET:
                continue
            option = self._options[name]
            try:
                parsed = self._parser.parse_args([*option.words(value)])
                option.check(value, getattr(parsed, option.action.dest))
            except WRONG as refused:
                pairs = option.kind == "json" and "=" in value
                redacted = "{...}" if pairs else redact(value)
                # vLLM's message may repeat the value, as given or as it wrote it anew.
                reason = re.sub(r"\{.*\}", "{...}", why(refused).replace(value, redacted))
                advice = option.advice(reason, value)
                mistakes.append(Mistake(name, redacted, advice, option.example))
            else:
                right[name] = value
        return right

    def _from_extra(self, words: Sequence[str], mistakes: list[Mistake]) -> dict[str, str]:
        """Return the options that VLLM_EXTRA_ARGS sets, as text; none if there is a mistake in it.

        It is written as on vLLM's command line.
        """
        values: dict[str, Any] = {}
        advice = ""
        try:
            values = self._parse_extra(words)
        except WRONG as refused:
            advice = self._refusal(refused)
        for name, value in values.items():
            option = self._options[name]
            try:
                option.check("", value)
            except WRONG as refused:
                advice = f"{option.flag}: {option.advice(why(refused), str(value))}"
        if advice:
            line = redact_line(shlex.join(words))
            mistakes.append(Mistake(EXTRA_ARGS, line, advice, EXTRA_EXAMPLE))
            return {}
        return {name: text(value) for name, value in values.items()}

    def _parse_extra(self, words: Sequence[str]) -> dict[str, Any]:
        """Parse command line words, and return the values of the options among them.

        Raises:
            ValueError: the parser refuses the words, or one of them makes no sense in a worker.
        """
        by_flag = self._parser._option_string_actions.items()
        denied = {flag for flag, action in by_flag if action.dest in DENIED}
        flags = {word.partition("=")[0].replace("_", "-") for word in words}
        # Before the parser acts on them: it prints help, and reads the file of --config.
        if refused := flags & {*denied, "--config"}:
            raise ValueError(f"a worker does not take {', '.join(sorted(refused))}")
        unset = object()
        dests = {option.action.dest: unset for option in self._options.values()}
        parsed = vars(self._parser.parse_args([*words], argparse.Namespace(**dests)))
        if parsed["model_tag"]:
            raise ValueError(f"unrecognized arguments: {parsed['model_tag']}")
        return {dest.upper(): parsed[dest] for dest in dests if parsed[dest] is not unset}

    def _refusal(self, refused: Exception) -> str:
        """Return the parser's message, with what is accepted by the option that it names."""
        named = re.match(r"argument (?:\S+/)?(--[\w-]+)", str(refused))
        for option in self._options.values():
            if named and named[1] in option.action.option_strings:
                return f"{named[1]}: {option.advice(why(refused), '')}"
        message, unknown, rest = str(refused).partition("unrecognized arguments: ")
        if not unknown:
            return why(refused) or message
        names = re.findall(r"--([\w-]+)", rest)
        gone = {name: removed(name.replace("-", "_").upper()) for name in names}
        since = [f"--{name}: {reason}" for name, reason in gone.items() if reason]
        return "; ".join([unknown + redact_line(rest), *since])
