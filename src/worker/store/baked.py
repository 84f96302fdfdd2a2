"""What the image holds, as its build has written it down."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from worker.store.places import BakedModel


@dataclass(frozen=True)
class _Baked:
    models: tuple[BakedModel, ...] = ()


_JSON = TypeAdapter(_Baked)


def baked_models(written: Path) -> tuple[BakedModel, ...]:
    """Read which models are in the image, from the file that names its settings, too."""
    try:
        return _JSON.validate_json(written.read_bytes()).models
    except (OSError, ValidationError):
        return ()
