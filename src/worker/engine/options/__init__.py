"""vLLM's options as settings: the installed vLLM's parser says which there are."""

import argparse
import copy
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import vllm.config

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine, this_machine
from worker.engine.options.automatic import GPU_SHARE, automatic, served_names
from worker.engine.options.combinations import AUTO, idle
from worker.engine.options.excluded import DENIED, IDLE, REFUSED
from worker.engine.options.extra import read_extra
from worker.engine.options.option import WRONG, Option, why
from worker.engine.seam.locations import find
from worker.engine.variables import NAMES
from worker.settings.environment import Default
from worker.settings.mistakes import Mistake, collected
from worker.settings.names import EMBEDDER
from worker.settings.values import redact

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
    """The options of the installed vLLM that a worker has, by upper-case name."""

    def __init__(self, machine: Machine | None = None) -> None:
        """Ask vLLM for its options.

        Args:
            machine: what engines will run on; by default this machine.
        """
        self.machine = machine or this_machine()
        self._parser = find("make_arg_parser")(_Parser(allow_abbrev=False))
        # The parser has a group of options for each configuration class.
        configs = {
            action.dest: getattr(vllm.config, group.title or "", None)
            for group in self._parser._action_groups
            for action in group._group_actions
        }
        self._options = {
            action.dest.upper(): Option(action, configs[action.dest])
            for action in self._parser._actions
            if action.option_strings and action.dest not in DENIED
        }

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._options)

    @property
    def variables(self) -> frozenset[str]:
        """Names of environment variables that vLLM reads itself."""
        return NAMES

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def idle(self, engines: Sequence[EngineArguments]) -> dict[str, str]:
        """Return the reasons why some options have no effect, by the settings' names."""
        excluded = (REFUSED | IDLE).items()
        prefixes = ("", EMBEDDER)
        reasons = {
            prefix + dest.upper(): reason for prefix in prefixes for dest, reason in excluded
        }
        for arguments in engines:
            reasons |= idle(arguments)
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
            values: non-blank texts by the options' names (``Given.options``); other names are
                ignored.
            prefix: of the names of the engine's settings.
            gpu_share: share of a GPU's memory, where it is unset.
            extra: words of VLLM_EXTRA_ARGS, which win over the values.
        """
        mistakes: list[Mistake] = []
        right = self._right(values, mistakes)
        from_extra: dict[str, str] = {}
        with collected(mistakes):
            from_extra = read_extra(extra, self._parser, self._options)
        given = right | from_extra
        defaults = automatic(given, self.machine, gpu_share)
        words = [*self._words(right, defaults, from_extra), *(extra if from_extra else ())]
        options = self._parse_together(words)
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
            if name in self._options and (name, value) not in UNSET:
                if mistake := self._mistake(name, value):
                    mistakes.append(mistake)
                else:
                    right[name] = value
        return right

    def _mistake(self, name: str, value: str) -> Mistake | None:
        """Return what vLLM accepts for an option, if it does not accept this value."""
        option = self._options[name]
        try:
            options = self._parser.parse_args([*option.words(value)])
            option.check(value, getattr(options, option.action.dest))
        except WRONG as refused:
            pairs = option.kind == "json" and "=" in value
            redacted = "{...}" if pairs else redact(value)
            # vLLM's message may repeat the value, as given or as it wrote it anew.
            reason = re.sub(r"\{.*\}", "{...}", why(refused).replace(value, redacted))
            return Mistake(name, redacted, option.advice(reason, value), option.example)
        return None

    def _words(
        self,
        values: Mapping[str, str],
        defaults: Sequence[Default],
        from_extra: Mapping[str, str],
    ) -> list[str]:
        """Write values and defaults as command line words, but for what the extra words set."""
        chosen = {
            default.name: default.value for default in defaults if default.name in self._options
        }
        return [
            word
            for name, value in {**values, **chosen}.items()
            if name not in from_extra
            for word in self._options[name].words(value)
        ]

    def _parse_together(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words, and set what is the worker's to decide."""
        # vLLM writes into some of its defaults, which two engines would share.
        options: argparse.Namespace = copy.deepcopy(self._parser.parse_args([*words]))
        options.served_model_name = served_names(options)
        # Set, it would also stop the metrics; the worker decides what is logged.
        options.disable_log_stats = False
        return options
