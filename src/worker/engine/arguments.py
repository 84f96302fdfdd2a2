"""The arguments of an engine, their origin, and the configuration that vLLM makes of them."""

import copy
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from worker.settings.environment import ChosenDefault
from worker.settings.names import CANONICAL_NAMES
from worker.settings.values import format_value


@dataclass(frozen=True)
class EngineArguments:
    """The arguments of one engine; startup steps that change them return a new value."""

    # As vLLM's parser returns them; never mutated: ``with_options`` makes a copy.
    vllm_args: Namespace
    model_name: str  # as the operator named it; ``vllm_args.model`` is its location
    prefix: str = ""  # of the names of this engine's settings
    # Set by the operator, as strings by name.
    operator_options: Mapping[str, str] = field(default_factory=dict)
    extra_option_names: frozenset[str] = frozenset()  # set in VLLM_EXTRA_ARGS
    defaults: tuple[ChosenDefault, ...] = ()  # that the worker chose for unset options
    # Where the store found the model, such as the image; None if the store didn't search.
    origin: str | None = None
    commit: str | None = None  # of the model's repository; None if unknown
    # The operator's spellings of the settings' names, by canonical name.
    spellings: Mapping[str, str] = field(default_factory=dict)
    config: Any = None  # vLLM's ``VllmConfig`` of these arguments; None until it is created

    def setting_name(self, name: str) -> str:
        """Return the name of an option's setting, or its flag, as the operator spelled it."""
        if name in self.extra_option_names:
            return f"--{name.lower().replace('_', '-')}"
        setting = self.prefix + CANONICAL_NAMES.get(name, name)
        return self.spellings.get(setting, setting)

    @property
    def model_setting(self) -> str:
        return self.setting_name("MODEL_NAME")

    def with_options(self, **values: Any) -> Self:
        """Return a copy in which some of vLLM's arguments have other values, not yet configured."""
        options = copy.copy(self.vllm_args)
        vars(options).update(values)
        return replace(self, vllm_args=options, config=None)

    def with_chosen_value(self, name: str, value: Any, reason: str) -> Self:
        """Return a copy with a value that the worker chose, which replaces an earlier default."""
        defaults = {default.name: default for default in self.defaults}
        defaults[name] = ChosenDefault(name, format_value(value), reason)
        changed = self.with_options(**{name.lower(): value})
        return replace(changed, defaults=tuple(defaults.values()))
