"""Checks whether a model of the worker can answer a request."""

from collections.abc import Sequence

from worker.engine import Engine, Engines, Model
from worker.errors import UnknownRoute

# Verbs for a model, by vLLM's name of a task that it supports. The first match is used. Models
# without any of these tasks score texts.
ABILITIES = {"generate": "generates text", "embed": "embeds", "classify": "classifies"}


def describe_ability(model: Model) -> str:
    """Return a model's name and ability: "'minilm' embeds"."""
    verb = next((verb for task, verb in ABILITIES.items() if task in model.tasks), "scores")
    return f"{model.names[0]!r} {verb}"


def check_model_ability(
    name: object, able_engines: Sequence[Engine], engines: Engines, target: str
) -> None:
    """Refuse a request to a model that this worker serves for another task.

    Args:
        name: The model's name as the caller wrote it, or None if it is absent.
        able_engines: The engines that can answer the request.
        engines: All engines of the worker.
        target: The request's route or kind of input, for the message.

    Raises:
        UnknownRoute: The model can't answer the request. The message names the models that can.
    """
    able_names = {able_name for engine in able_engines for able_name in engine.model.names}
    for engine in engines:
        if name in engine.model.names and name not in able_names:
            names = ", ".join(engine.model.names[0] for engine in able_engines)
            message = f"{describe_ability(engine.model)} and can't answer {target}; {names} can"
            raise UnknownRoute(f"{message}.", param="model")
