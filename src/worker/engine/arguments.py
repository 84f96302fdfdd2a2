"""The arguments that an engine is started with: vLLM's own, and where they come from."""

import copy
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from worker.engine.machine import Machine
from worker.settings.environment import Default
from worker.settings.values import text
from worker.store import Found, Wanted


@dataclass(frozen=True)
class StartContext:
    """What the steps of a start may look at besides an engine's arguments.

    Attributes:
        found: the directories of repositories.
        fast_load: whether a loader may be chosen that reads around the page cache (FAST_LOAD).
        trains: whether the worker only trains adapters, and starts no engine.
    """

    machine: Machine
    found: Mapping[Wanted, Found] = field(default_factory=dict)
    fast_load: bool = False
    trains: bool = False


@dataclass(frozen=True)
class EngineArguments:
    """The arguments of one engine. Steps of the start that change any return a new value.

    Attributes:
        vllm: vLLM's own, as its parser makes them. Never changed: ``with_options`` makes a copy.
        model_name: the model as the operator named it; ``vllm.model`` is where it was found.
        prefix: of the names of this engine's settings.
        given: the options that the operator set, as text by their names.
        extra: names of those that are set in VLLM_EXTRA_ARGS.
        defaults: values that the worker chose for options left unset.
        origin: where the model was found, if the store looked for it.
        commit: of the model's repository, if it was found by one.
        written: the settings' names as the operator spelled them, where they differ.
    """

    vllm: Namespace
    model_name: str
    prefix: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    extra: frozenset[str] = frozenset()
    defaults: tuple[Default, ...] = ()
    origin: str | None = None
    commit: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def setting(self, name: str) -> str:
        """Return the name of an option's setting, as the operator spelled it."""
        name = self.prefix + name
        return self.written.get(name, name)

    def with_options(self, **values: Any) -> Self:
        """Return a copy in which some of vLLM's arguments have other values."""
        options = copy.copy(self.vllm)
        vars(options).update(values)
        return replace(self, vllm=options)

    def with_default(self, name: str, value: Any, reason: str) -> Self:
        """Return a copy with a value that the worker chose, in place of an earlier default."""
        defaults = {one.name: one for one in self.defaults}
        defaults[name] = Default(name, text(value), reason)
        changed = self.with_options(**{name.lower(): value})
        return replace(changed, defaults=tuple(defaults.values()))
