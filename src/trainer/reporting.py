"""Reports a training to Weights & Biases, where its operator has installed its package."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.events import Events
from trainer.spec import Hyperparameters, Spec
from worker.masking import hide, masked, without_paths
from worker.settings.environment import is_set, process_environ

_PACKAGE, _KEY = "wandb", "WANDB_API_KEY"
# Characters of why nothing is reported.
LONGEST = 300


def reporting(spec: Spec, run: str, events: Events) -> list[TrainerCallback]:
    """Begin the report of a training, if one is wanted; tell why if there can be none.

    Args:
        spec: the training.
        run: an id of it, the same one for all attempts.
        events: to tell.
    """
    if spec.wandb is None:
        return []
    if find_spec(_PACKAGE) is None:
        missing = f"the package {_PACKAGE} is not installed"
    elif not is_set(_KEY):
        missing = f"there is no {_KEY}"
    else:
        import wandb  # noqa: PLC0415 - it may be missing

        try:
            return [Reporting(spec, run)]
        except wandb.errors.Error as error:
            # It may quote the key, which this process has in its environment, or a file's path.
            hide([process_environ()[_KEY]])
            missing = without_paths(masked(str(error)))[:LONGEST]
    events.tell(f"Nothing is reported to Weights & Biases: {missing}", level="warn")
    return []


class Reporting(TrainerCallback):
    """Reports what the Trainer logs: numbers, never rows or names of files."""

    def __init__(self, spec: Spec, run: str) -> None:
        import wandb  # noqa: PLC0415 - it may be missing

        known = {"project", "name", "entity", "tags"}
        asked: Mapping[str, Any] = spec.wandb or {}
        self._run = wandb.init(
            **{name: value for name, value in asked.items() if name in known},
            id=run,
            resume="allow",
            config=spec.model_dump(mode="json", include=set(Hyperparameters.model_fields)),
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        self._run.log(logs or {}, step=state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        self._run.finish()
