"""vLLM's options as environment variables: the installed vLLM's parser says which there are."""

import argparse
import copy
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import vllm.config

from worker.engine.arguments import EngineArguments
from worker.engine.locations import find
from worker.engine.machine import Machine, machine
from worker.engine.options.automatic import GPU_SHARE, automatic, served_names
from worker.engine.options.contradictions import contradictions
from worker.engine.options.option import Option, why
from worker.errors import Mistake, SettingsError, collected, in_settings
from worker.settings.names import OF_OTHERS, removed
from worker.settings.sources import EXTRA_ARGS, EXTRA_EXAMPLE
from worker.settings.values import hidden, shown, text

# What vLLM raises for settings that it can't start with.
REFUSALS = (
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    find("VLLMError"),
)

_NO_SOCKET = "vLLM's server runs inside the worker, without a socket of its own"
_ONE_MACHINE = "a worker is one machine"
# Options that make no sense in a worker, and why.
REFUSED = dict.fromkeys(
    """
    api_server_count grpc grpc_port headless middleware root_path ssl_ca_certs ssl_cert_reqs
    ssl_certfile ssl_ciphers ssl_keyfile enable_ssl_refresh uds
    """.split(),
    _NO_SOCKET,
) | dict.fromkeys(
    """
    data_parallel_address data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank
    data_parallel_rpc_port data_parallel_start_rank data_parallel_supervisor_port master_addr
    master_port nnodes node_rank
    """.split(),
    _ONE_MACHINE,
)
# Keys are for others to read: the hub's library does for itself, and the worker has its own.
KEYS = frozenset({"api_key", "hf_token"})
DENIED = {name.lower() for name in OF_OTHERS} | REFUSED.keys() | KEYS

# Accepted by vLLM's parser, but nothing asks for them: in a worker, or anywhere.
IDLE = dict.fromkeys(
    """
    aggregate_engine_logging allow_credentials allowed_headers allowed_methods allowed_origins
    disable_access_log_for_endpoints disable_fastapi_docs disable_uvicorn_access_log
    dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s
    dp_supervisor_probe_timeout_s data_parallel_multi_port_external_lb enable_offline_docs
    h11_max_header_count h11_max_incomplete_event_size log_error_stack shutdown_timeout
    uvicorn_log_level
    """.split(),
    _NO_SOCKET,
) | dict.fromkeys(
    """
    collect_detailed_traces disable_cascade_attn max_parallel_loading_workers
    show_hidden_metrics_for_version
    """.split(),
    "vLLM itself ignores it",
)

# What vLLM's conversions raise for a value that they can't read.
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# Values by which consoles have told that an option is not set.
UNSET = {("MAX_NUM_BATCHED_TOKENS", "0")}

# Options that mean nothing unless another one is set.
NEEDS = {
    "FULLY_SHARDED_LORAS": "ENABLE_LORA",
    "LORA_DTYPE": "ENABLE_LORA",
    "MAX_CPU_LORAS": "ENABLE_LORA",
    "MAX_LORAS": "ENABLE_LORA",
    "MAX_LORA_RANK": "ENABLE_LORA",
    "TOOL_CALL_PARSER": "ENABLE_AUTO_TOOL_CHOICE",
}


class _Parser(find("FlexibleArgumentParser")):  # type: ignore[misc]  # find returns Any
    """vLLM's parser, but a wrong value is an exception instead of 300 lines and an exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class Options:
    """The options of the installed vLLM, by upper-case name."""

    def __init__(self, on: Machine | None = None) -> None:
        """Ask vLLM for its options.

        Args:
            on: what engines will run on; this machine.
        """
        self.machine = on or machine()
        self._parser = find("make_arg_parser")(_Parser(allow_abbrev=False))
        # The parser groups options by the config class that each one ends up in.
        configs = {
            action.dest: getattr(vllm.config, group.title or "", None)
            for group in self._parser._action_groups
            for action in group._group_actions
        }
        every = {
            action.dest: Option(action, configs[action.dest])
            for action in self._parser._actions
            if action.option_strings
        }
        self._options = {
            option.name: option for dest, option in every.items() if dest not in DENIED
        }

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._options)

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def idle(self, arguments: EngineArguments | None, prefix: str = "") -> dict[str, str]:
        """Say why options have no effect beside others, by name, with the operator's prefix.

        Args:
            arguments: of an engine; None, where there are none.
            prefix: what the operator writes before the options' names.
        """
        told = {prefix + dest.upper(): why for dest, why in (REFUSED | IDLE).items()}
        for name, needed in NEEDS.items():
            if arguments and not getattr(arguments.vllm, needed.lower()):
                told[prefix + name] = f"it needs {prefix}{needed}"
        return told

    def parse(
        self,
        environ: Mapping[str, str],
        prefix: str = "",
        gpu_share: float = GPU_SHARE,
        extra: Sequence[str] = (),
    ) -> EngineArguments:
        """Turn variables into vLLM's own arguments.

        Args:
            environ: non-blank variables by the options' names (``Given.options``); those that
                name no option are passed over.
            prefix: what the operator wrote before their names.
            gpu_share: of a GPU's memory, where the variables don't say.
            extra: command line words, which win over the variables.

        Raises:
            SettingsError: everything that is wrong, not only the first.
        """
        given = {
            name: value
            for name, value in environ.items()
            if name in self._options and (name, value) not in UNSET
        }
        mistakes = [mistake for name in given if (mistake := self._mistake(name, given[name]))]
        sound = {name: given[name] for name in given.keys() - {each.name for each in mistakes}}
        last: dict[str, str] = {}
        with collected(mistakes):
            last = self._extra(extra)
        sound |= last
        choices = automatic(sound, self.machine, gpu_share)
        chosen = {each.name: each.value for each in choices if each.name in self._options}
        argv = [
            word
            for name, value in (sound | chosen).items()
            if name not in last
            for word in self._options[name].words(value)
        ]
        # vLLM writes into some of its defaults, which two engines would share.
        arguments: argparse.Namespace = copy.deepcopy(
            self._parser.parse_args([*argv, *(extra if last else ())])
        )
        arguments.served_model_name = served_names(arguments)
        # It would stop the counting, too; what is logged the worker decides.
        arguments.disable_log_stats = False
        mistakes += contradictions(arguments, sound, self.machine, prefix)
        mistakes += _refused_together(arguments, sound)
        if mistakes:
            raise SettingsError([replace(each, name=prefix + each.name) for each in mistakes])
        return EngineArguments(
            vllm=arguments,
            model_name=arguments.model,
            prefix=prefix,
            given=frozenset(sound),
            extra=frozenset(last),
            defaults=tuple(choices),
        )

    def _mistake(self, name: str, value: str) -> Mistake | None:
        """Say what vLLM accepts for an option where it does not accept this value."""
        option = self._options[name]
        try:
            arguments = self._parser.parse_args([*option.words(value)])
            option.check(value, getattr(arguments, option.action.dest))
        except WRONG as refused:
            pairs = option.kind == "json" and "=" in value
            repeated = "{...}" if pairs else shown(value)
            # vLLM's own words may repeat it, too, as it wrote it anew.
            told = re.sub(r"\{.*\}", "{...}", why(refused).replace(value, repeated))
            return Mistake(name, repeated, _advice(told, option, value), option.example)
        return None

    def _extra(self, words: Sequence[str]) -> dict[str, str]:
        """Read which options command line words set, and to what.

        Raises:
            SettingsError: they set none, or one that makes no sense here.
        """
        told: dict[str, Any] = {}
        advice = ""
        try:
            told = self._set_by(words)
        except WRONG as refused:
            advice = self._flag_told(refused)
        for name, value in told.items():
            option = self._options[name]
            try:
                option.check("", value)
            except WRONG as refused:
                advice = f"{option.flag}: {_advice(why(refused), option, str(value))}"
        if advice:
            line = hidden(shlex.join(words))
            raise SettingsError([Mistake(EXTRA_ARGS, line, advice, EXTRA_EXAMPLE)])
        return {name: text(value) for name, value in told.items()}

    def _flag_told(self, refused: Exception) -> str:
        """Say what the option accepts that the parser speaks of."""
        named = re.match(r"argument (?:\S+/)?(--[\w-]+)", str(refused))
        for option in self._options.values():
            if named and named[1] in option.action.option_strings:
                return f"{named[1]}: {_advice(why(refused), option, '')}"
        told, unknown, rest = str(refused).partition("unrecognized arguments: ")
        if not unknown:
            return why(refused) or told
        names = re.findall(r"--([\w-]+)", rest)
        gone = {name: removed(name.replace("-", "_").upper()) for name in names}
        since = [f"--{name}: {told}" for name, told in gone.items() if told]
        return "; ".join([unknown + hidden(rest), *since])

    def _set_by(self, words: Sequence[str]) -> dict[str, Any]:
        denied = {
            flag: action.dest
            for action in self._parser._actions
            for flag in action.option_strings
            if action.dest in DENIED
        }
        flags = {word.partition("=")[0].replace("_", "-") for word in words}
        # Before the parser heeds them: help is printed, and the file of --config is read.
        if refused := flags & {*denied, "--config"}:
            raise ValueError(f"a worker does not take {', '.join(sorted(refused))}")
        unset = object()
        every = {option.action.dest: unset for option in self._options.values()}
        parsed = vars(self._parser.parse_args([*words], argparse.Namespace(**every)))
        if parsed["model_tag"]:
            raise ValueError(f"unrecognized arguments: {parsed['model_tag']}")
        return {dest.upper(): parsed[dest] for dest in every if parsed[dest] is not unset}


def _advice(told: str, option: Option, value: str) -> str:
    return "; ".join(filter(None, (told, option.accepted(value))))


def _refused_together(arguments: argparse.Namespace, given: Mapping[str, str]) -> Iterator[Mistake]:
    """Ask vLLM itself, and find the option that its refusal speaks of."""
    # Of templates the worker itself has more to say.
    rest = argparse.Namespace(**{**vars(arguments), "chat_template": None})
    try:
        find("validate_parsed_serve_args")(rest)
    except REFUSALS as error:
        told = in_settings(str(error)).removeprefix("Error: ")
        named = [name for name in given if re.search(rf"\b{name}\b", told)]
        name = named[0] if named else "MODEL"
        yield Mistake(name, given.get(name), told)
