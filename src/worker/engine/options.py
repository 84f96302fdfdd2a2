"""vLLM's options as environment variables: the installed vLLM's parser says which there are."""

import argparse
import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import vllm.config
from pydantic import TypeAdapter, ValidationError

from worker.engine.locations import find
from worker.errors import Mistake, SettingsError, StartFailed
from worker.settings import boolean, export

# Of a GPU's memory, where vLLM's own default does not suit a worker.
GPU_SHARE = 0.95
# Without a GPU: what starts fast and runs anywhere. bfloat16, many models' own type, dies with an
# illegal instruction on some virtual machines.
CPU_DEFAULTS = {"DTYPE": "float32", "ENFORCE_EAGER": "1"}
# The executor inside the core's process; vLLM takes it on a CPU only if the second variable is 0.
CPU_UNIPROCESS = {"DISTRIBUTED_EXECUTOR_BACKEND": "uni"}
CPU_EXPORTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

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

# vLLM's name for the type of an option that takes broken JSON for text.
TEXT_OR_JSON = "union_dict_and_str"

# Options that make no sense in a worker without a socket, on one machine, whose engine runs in
# process; and one that the hub's library reads for itself (a token in argv would be logged).
REFUSED = frozenset(
    """
    api_key api_server_count config data_parallel_address data_parallel_external_lb
    data_parallel_hybrid_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_start_rank data_parallel_supervisor_port grpc grpc_port headless
    help hf_token host master_addr master_port middleware model_tag nnodes node_rank
    port root_path ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile
    enable_ssl_refresh uds
    """.split()
)


class _Parser(find("FlexibleArgumentParser")):  # type: ignore[misc]  # find returns Any
    """vLLM's parser, but a wrong value is an exception instead of 300 lines and an exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class Options:
    """The options of the installed vLLM, by upper-case name."""

    def __init__(self) -> None:
        self._parser = find("make_arg_parser")(_Parser())
        self._actions: dict[str, argparse.Action] = {
            action.dest.upper(): action
            for action in self._parser._actions
            if action.option_strings and action.dest not in REFUSED
        }
        # The parser groups options by the config class that each one ends up in.
        self._configs = {
            action.dest: getattr(vllm.config, group.title or "", None)
            for group in self._parser._action_groups
            for action in group._group_actions
        }

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._actions)

    def parse(
        self, environ: Mapping[str, str], prefix: str = "", gpu_share: float = GPU_SHARE
    ) -> argparse.Namespace:
        """Turn variables into vLLM's own arguments.

        Args:
            environ: non-blank variables (``worker.settings.engine_environ``); those that name no
                option are passed over.
            prefix: what the operator wrote before their names.
            gpu_share: of a GPU's memory, where the variables don't say.

        Raises:
            SettingsError: every value that vLLM refuses, not only the first.
            StartFailed: values that vLLM takes one by one, but not together.
        """
        given = {name: value for name, value in environ.items() if name in self._actions}
        mistakes = [
            # JSON can hold keys to other services.
            Mistake(prefix + name, "{...}" if value.startswith("{") else value, refusal)
            for name, value in given.items()
            if (refusal := self._refusal(name, value))
        ]
        if mistakes:
            raise SettingsError(mistakes)
        chosen = {**_defaults(given, gpu_share), **given, **_served_names(given)}
        argv = [word for name, value in chosen.items() for word in self._words(name, value)]
        # vLLM writes into some of its defaults, which two engines would share.
        arguments: argparse.Namespace = copy.deepcopy(self._parser.parse_args(argv))
        # Several defaults depend on whether an option was given, whatever its value.
        arguments.given = frozenset(given)
        try:
            find("validate_parsed_serve_args")(arguments)
        except REFUSALS as error:
            raise StartFailed(f"vLLM refuses the settings taken together: {error}") from None
        return arguments

    def _refusal(self, name: str, value: str) -> str | None:
        """Say what vLLM accepts for an option where it does not accept this value."""
        dest = self._actions[name].dest
        try:
            arguments = self._parser.parse_args([*self._words(name, value)])
            self._check_range(dest, getattr(arguments, dest))
        except ValidationError as invalid:
            return "; ".join(error["msg"] for error in invalid.errors())
        except json.JSONDecodeError as invalid:
            return f"broken JSON: {invalid}"
        except ValueError as invalid:
            # argparse says: argument --max-model-len: invalid int_or_auto value: 'abc'
            told = re.sub(r"^argument \S+: ", "", str(invalid))
            return re.sub(r"^invalid (\w+) value: .*", _not_of_type, told)
        return None

    def _check_range(self, dest: str, value: Any) -> None:
        """Hold a converted value to the bounds that vLLM's config class declares for it."""
        fields = getattr(self._configs.get(dest), "__pydantic_fields__", {})
        if dest in fields and value is not None:
            for bound in fields[dest].metadata:
                TypeAdapter(Annotated[Any, bound]).validate_python(value)

    def _words(self, name: str, value: str) -> Iterator[str]:
        """Spell one option as command line words; the ``=`` protects a value's leading dash."""
        action = self._actions[name]
        flag = f"--{action.dest.replace('_', '-')}"
        if action.nargs == 0:
            yield from self._flag(action, flag, boolean(value))
        elif action.nargs == "+":
            yield flag
            yield from _items(value)
        else:
            if value.startswith("{") and getattr(action.type, "__name__", "") == TEXT_OR_JSON:
                json.loads(value)
            yield f"{flag}={value}"

    @staticmethod
    def _flag(action: argparse.Action, flag: str, wanted: bool) -> Iterator[str]:
        if wanted:
            yield flag
        elif isinstance(action, argparse.BooleanOptionalAction):
            yield flag.replace("--", "--no-", 1)


def _items(value: str) -> list[str]:
    """Read a list as operators write it: as JSON, or with commas between."""
    if value[0] not in "[{":
        return [item.strip() for item in value.split(",") if item.strip()]
    parsed = json.loads(value)
    items = parsed if isinstance(parsed, list) else [parsed]
    return [item if isinstance(item, str) else json.dumps(item) for item in items]


def _not_of_type(told: re.Match[str]) -> str:
    return f"not a value of type {told[1].replace('_', ' ')}"


def _defaults(given: Mapping[str, str], gpu_share: float) -> dict[str, str]:
    """Choose what the operator left open, by the machine."""
    if not find("current_platform").is_cpu():
        return {"GPU_MEMORY_UTILIZATION": f"{gpu_share:g}"}
    export(CPU_EXPORTS)
    parallel = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE")
    one_process = all(given.get(name, "1") == "1" for name in parallel)
    return CPU_DEFAULTS | (CPU_UNIPROCESS if one_process else {})


def _served_names(given: Mapping[str, str]) -> dict[str, str]:
    """Serve a model by its own name, too, behind those that the operator gave it.

    Callers name a model; a path of this machine is none of their business.
    """
    if not (model := given.get("MODEL")):
        return {}
    own = Path(model).resolve().name if Path(model).is_dir() else model
    names = _items(given["SERVED_MODEL_NAME"]) if "SERVED_MODEL_NAME" in given else []
    return {"SERVED_MODEL_NAME": json.dumps([*dict.fromkeys([*names, own])])}
