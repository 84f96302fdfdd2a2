"""Which models of a worker can answer a request, and what the others do instead."""

from collections.abc import Sequence

from worker.engine import Engine, Engines, Model
from worker.errors import UnknownRoute

# By vLLM's tasks; a model with several is known by the first.
ABILITIES = {"generate": "generates text", "embed": "embeds", "classify": "classifies"}


def ability(model: Model) -> str:
    """Return what a model does, with its name: "'minilm' embeds"."""
    does = next((does for task, does in ABILITIES.items() if task in model.tasks), "scores")
    return f"{model.names[0]!r} {does}"


def refuse_unable(name: object, able: Sequence[Engine], engines: Engines, place: str) -> None:
    """Refuse the name of a model that this worker serves for something else.

    Args:
        name: as the caller wrote it; None if there was none.
        able: the engines that can answer.
        engines: all of them.
        place: what they can answer, for the message: a route.

    Raises:
        UnknownRoute: naming those that can.
    """
    known = {known for engine in able for known in engine.model.names}
    for engine in engines:
        if name in engine.model.names and name not in known:
            can = ", ".join(engine.model.names[0] for engine in able)
            message = f"{ability(engine.model)} and can't answer {place}; {can} can"
            raise UnknownRoute(f"{message}.", param="model")
