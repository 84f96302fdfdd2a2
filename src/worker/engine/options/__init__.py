"""vLLM's options as settings, defined by the parser of the installed vLLM.

``Options`` reads this parser, and converts the settings of an engine (``RawSettings.main_options``)
into vLLM's arguments. ``option`` converts and checks each value alone, so that one start finds all
mistakes, and ``automatic`` chooses values for unset options that suit the machine. The result is an
``EngineArguments``. ``combinations`` has checks of several options together.

The tables here are of options that the worker refuses, or that have no effect in a worker.
"""

import argparse
import copy
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import vllm.config

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine, detect_machine
from worker.engine.options.automatic import (
    TOTAL_GPU_SHARE,
    choose_option_defaults,
    served_model_names,
)
from worker.engine.options.combinations import AUTO
from worker.engine.options.option import CONVERSION_ERRORS, Option, refusal_reason
from worker.engine.seam.locations import import_from_vllm
from worker.engine.variables import VLLM_VARIABLES
from worker.settings.mistakes import Mistake
from worker.settings.names import EMBEDDER_PREFIX, FOREIGN_OPTIONS, explain_removal
from worker.settings.sources import EXTRA_ARGS, EXTRA_ARGS_EXAMPLE
from worker.settings.values import format_value, redact_command_line, redact_json_and_urls

# Names and values of options that web consoles write for unset options.
UNSET_VALUES = {("MAX_NUM_BATCHED_TOKENS", "0"), ("LORA_MODULES", "[]")}

_NO_SOCKET = "vLLM's server runs inside the worker, without a socket of its own"

# Options that make no sense in a worker, which ignores them or refuses them in VLLM_EXTRA_ARGS.
UNSUPPORTED_OPTIONS = dict.fromkeys(
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
    "a worker runs on one machine",
)

# All options of vLLM that settings can't set. Two of them are secrets that vLLM must not receive:
# HF_TOKEN is passed to the hub's library in the environment, and SERVE_API_KEY replaces api_key.
EXCLUDED_OPTIONS = (
    {name.lower() for name in FOREIGN_OPTIONS}
    | UNSUPPORTED_OPTIONS.keys()
    | {"api_key", "hf_token"}
)

# Options that vLLM's parser accepts but that have no effect in a worker or at all, with reasons.
INEFFECTIVE_OPTIONS = dict.fromkeys(
    """
    aggregate_engine_logging allow_credentials allowed_headers allowed_methods
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

# Options that have no effect unless another option is set, with that option.
PREREQUISITES = {
    "FULLY_SHARDED_LORAS": "ENABLE_LORA",
    "LORA_DTYPE": "ENABLE_LORA",
    "MAX_CPU_LORAS": "ENABLE_LORA",
    "MAX_LORAS": "ENABLE_LORA",
    "MAX_LORA_RANK": "ENABLE_LORA",
    "TOOL_CALL_PARSER": "ENABLE_AUTO_TOOL_CHOICE",
}


class _OptionParser(import_from_vllm("FlexibleArgumentParser")):  # type: ignore[misc]  # import_from_vllm returns Any
    """vLLM's command line parser, which raises errors instead of printing 300 lines and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@functools.cache
def read_parser() -> tuple[argparse.ArgumentParser, dict[str, Option]]:
    """Return vLLM's parser, and its options that the worker supports."""
    parser = import_from_vllm("make_arg_parser")(_OptionParser(allow_abbrev=False))
    # The parser has one group of options per configuration class.
    options = {
        action.dest.upper(): Option(action, getattr(vllm.config, group.title or "", None))
        for group in parser._action_groups
        for action in group._group_actions
        if action.option_strings and action.dest not in EXCLUDED_OPTIONS
    }
    return parser, options


class ParsedOptions(NamedTuple):
    """An engine's arguments without the wrong values, and a mistake for each wrong value.

    Mistakes name options without the prefix of the engine's settings, such as ``EMBEDDING_``.
    """

    arguments: EngineArguments
    mistakes: list[Mistake]


class Options:
    """The options of the installed vLLM that the worker supports, by upper-case name.

    ``variables`` are the names of environment variables that vLLM reads itself.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        """Read the options of vLLM's parser; defaults will suit the machine, or this machine."""
        self.machine = machine or detect_machine()
        self._parser, self._options = read_parser()
        self.names = frozenset(self._options)
        self.variables = VLLM_VARIABLES

    def __getitem__(self, name: str) -> Option:
        return self._options[name]

    def ineffective_option_reasons(self, engines: Sequence[EngineArguments]) -> dict[str, str]:
        """Return, by setting name, why options (set or not) would have no effect on the engines."""
        reasons = {
            prefix + dest.upper(): reason
            for prefix in ("", EMBEDDER_PREFIX)
            for dest, reason in (UNSUPPORTED_OPTIONS | INEFFECTIVE_OPTIONS).items()
        }
        for arguments in engines:
            for name, required in PREREQUISITES.items():
                if not getattr(arguments.vllm_args, required.lower()):
                    reasons[arguments.prefix + name] = f"it needs {arguments.prefix}{required}"
        return reasons

    def parse_engine_settings(
        self,
        values: Mapping[str, str],
        prefix: str = "",
        gpu_share: float = TOTAL_GPU_SHARE,
        extra_args: Sequence[str] = (),
    ) -> ParsedOptions:
        """Convert settings into vLLM's arguments, validating each value separately.

        ``values`` are strings by option name that are not blank; other names are ignored.
        ``gpu_share`` is the default share of a GPU's memory. ``extra_args``, the words of
        VLLM_EXTRA_ARGS, override the values.
        """
        mistakes: list[Mistake] = []
        accepted = self._filter_valid_values(values, mistakes)
        extra_options = self._parse_extra_args(extra_args, mistakes)
        operator_options = accepted | extra_options
        defaults = choose_option_defaults(operator_options, self.machine, gpu_share)
        # Some defaults set environment variables instead of options.
        default_values = {item.name: item.value for item in defaults if item.name in self._options}
        words = [
            word
            for name, value in {**accepted, **default_values}.items()
            if name not in extra_options
            for word in self._options[name].command_line_words(value)
        ]
        if extra_options:
            words += extra_args
        # vLLM mutates some of its default objects, which two engines would share.
        options: argparse.Namespace = copy.deepcopy(self._parser.parse_args(words))
        options.served_model_name = served_model_names(options)
        # True would also disable vLLM's metrics. The worker has its own setting for the log.
        options.disable_log_stats = False
        if "ENABLE_AUTO_TOOL_CHOICE" not in operator_options:
            # The step ``with_parsers`` disables tool choice again if the model has no parser.
            options.enable_auto_tool_choice = options.tool_call_parser == AUTO
        arguments = EngineArguments(
            vllm_args=options,
            model_name=options.model,
            prefix=prefix,
            operator_options=operator_options,
            extra_option_names=frozenset(extra_options),
            defaults=tuple(defaults),
        )
        return ParsedOptions(arguments, mistakes)

    def _filter_valid_values(
        self, values: Mapping[str, str], mistakes: list[Mistake]
    ) -> dict[str, str]:
        accepted = {}
        for name, value in values.items():
            if name not in self._options or (name, value) in UNSET_VALUES:
                continue
            option = self._options[name]
            try:
                parsed = self._parser.parse_args([*option.command_line_words(value)])
                option.check_value(value, getattr(parsed, option.action.dest))
            except CONVERSION_ERRORS as error:
                has_pairs = option.kind == "json" and "=" in value
                redacted = "{...}" if has_pairs else redact_json_and_urls(value)
                # vLLM's message may repeat the value, either unchanged or reformatted.
                reason = re.sub(r"\{.*\}", "{...}", refusal_reason(error).replace(value, redacted))
                advice = option.build_advice(reason, value)
                mistakes.append(Mistake(name, redacted, advice, option.example))
            else:
                accepted[name] = value
        return accepted

    def _parse_extra_args(self, words: Sequence[str], mistakes: list[Mistake]) -> dict[str, str]:
        """Return the values in VLLM_EXTRA_ARGS by option; {} and a new mistake if one is wrong."""
        values: dict[str, Any] = {}
        advice = ""
        try:
            values = self._parse_command_line(words)
        except CONVERSION_ERRORS as error:
            advice = self._describe_extra_args_error(error)
        for name, value in values.items():
            option = self._options[name]
            try:
                option.check_value("", value)
            except CONVERSION_ERRORS as error:
                advice = f"{option.flag}: {option.build_advice(refusal_reason(error), str(value))}"
        if advice:
            line = redact_command_line(shlex.join(words))
            mistakes.append(Mistake(EXTRA_ARGS, line, advice, EXTRA_ARGS_EXAMPLE))
            return {}
        return {name: format_value(value) for name, value in values.items()}

    def _parse_command_line(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the parsed values of the given options only, without the defaults of others."""
        by_flag = self._parser._option_string_actions.items()
        denied = {flag for flag, action in by_flag if action.dest in EXCLUDED_OPTIONS}
        flags = {word.partition("=")[0].replace("_", "-") for word in words}
        # Check the flags first: the parser would print help for --help, and read --config's file.
        if refused_flags := flags & {*denied, "--config"}:
            raise ValueError(f"a worker does not accept {', '.join(sorted(refused_flags))}")
        unset = object()
        dests = {option.action.dest: unset for option in self._options.values()}
        parsed = vars(self._parser.parse_args([*words], argparse.Namespace(**dests)))
        # vLLM's parser takes a word without a flag as the model's name.
        if parsed["model_tag"]:
            raise ValueError(f"unrecognized arguments: {parsed['model_tag']}")
        return {dest.upper(): parsed[dest] for dest in dests if parsed[dest] is not unset}

    def _describe_extra_args_error(self, error: Exception) -> str:
        named_flag = re.match(r"argument (?:\S+/)?(--[\w-]+)", str(error))
        for option in self._options.values():
            if named_flag and named_flag[1] in option.action.option_strings:
                return f"{named_flag[1]}: {option.build_advice(refusal_reason(error), '')}"
        message, unknown, rest = str(error).partition("unrecognized arguments: ")
        if not unknown:
            return refusal_reason(error) or message
        names = re.findall(r"--([\w-]+)", rest)
        reasons = {name: explain_removal(name.replace("-", "_").upper()) for name in names}
        removals = [f"--{name}: {reason}" for name, reason in reasons.items() if reason]
        return "; ".join([unknown + redact_command_line(rest), *removals])
