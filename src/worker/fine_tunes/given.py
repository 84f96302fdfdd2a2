"""What a worker gives the process that trains: the model, the rows, and what the operator sets."""

from dataclasses import dataclass
from pathlib import Path

from trainer.spec import Spec
from worker.engine import Model
from worker.errors import InvalidInput, VolumeError
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes
from worker.settings import Settings


@dataclass(frozen=True, slots=True)
class Given:
    """What all fine-tunes of a worker are given. For threads.

    Args:
        fine_tunes: of the volume.
        model: that the worker serves.
        settings: the worker's.
    """

    fine_tunes: FineTunes
    model: Model
    settings: Settings

    def spec(self, fine_tune: FineTune) -> Spec:
        """Return what a fine-tune's training is given.

        Raises:
            InvalidInput: the model can't be trained.
            NoSuchObject: its rows are no longer there.
            VolumeError: the volume fails.
        """
        request, model = fine_tune.request, self.model
        if not self.settings.base_path.is_dir():
            raise VolumeError("There is no network volume for the adapter: set BASE_PATH.")
        place = directory_of(model)
        rows, held_out = request.training, request.validation
        return Spec(
            **dict(request.spec),
            model=place,
            tokenizer=model.tokenizer.absolute() if model.tokenizer else place,
            chat_template=model.chat_template,
            trust_remote_code=model.trust_remote_code,
            device="cpu" if model.device == "cpu" else "cuda",
            max_length=min(model.max_model_len, self.settings.fine_tune_max_length),
            training=self.fine_tunes.data(rows),
            validation=self.fine_tunes.data(held_out) if held_out else None,
            wandb=request.wandb,
        )


def directory_of(model: Model) -> Path:
    """Return the directory that a training reads a model from, as an absolute path.

    Raises:
        InvalidInput: the model can't be trained.
    """
    if "generate" not in model.tasks:
        raise InvalidInput(f"{model.names[0]} can't be fine-tuned: it writes no text.")
    if model.place is None or model.quantization is not None:
        raise InvalidInput(
            f"{model.names[0]} can't be fine-tuned: it is quantised, or not read from a "
            "directory. MODEL_NAME has to name the model in its own precision."
        )
    return model.place.absolute()


def check_base(fine_tune: FineTune, model: Model) -> None:
    """Check that a fine-tune begins with a worker's model. For threads.

    Raises:
        InvalidInput: it begins with another.
    """
    base = fine_tune.request.base
    if base not in model.names:
        raise InvalidInput(
            f"{fine_tune.id} is a fine-tune of {base!r}, and this worker has {model.names[0]}."
        )
