"""Where the input and the output of LLM Engine's batches lie."""

from pathlib import Path

from worker.errors import InvalidInput
from worker.files import PREFIX, Files
from worker.volume import Volume, ids

INPUT, OUTPUT = "input_data_path", "output_data_path"
_URLS = ("http://", "https://")


def input_place(path: str, volume: Volume, files: Files) -> Path:
    """Return where an input is: the id of a file, or a path on the volume.

    Raises:
        InvalidInput: it is an address, or a path that is not for callers.
        NoSuchObject: there is no such file.
        VolumeError: there is no volume.
    """
    if ids.fits(PREFIX, path):
        return files.content(files.get(path))
    return _place(INPUT, path, volume)


def output_place(path: str, volume: Volume) -> Path:
    """Return where an output goes.

    Raises:
        InvalidInput: no file can be there, or not one of a caller's.
        VolumeError: there is no volume.
    """
    place = _place(OUTPUT, path, volume)
    first = next(parent for parent in place.parents if parent.exists())
    if place.is_dir() or not first.is_dir():
        raise InvalidInput(f"{OUTPUT}: {path}: no file can be there", param=OUTPUT)
    return place


def _place(name: str, path: str, volume: Volume) -> Path:
    if path.startswith(_URLS):
        message = (
            "this worker fetches nothing from an address, and sends nothing to one: "
            "a path on its volume, s3://<volume id>/key"
        )
        if name == INPUT:
            message += ", or the id of a file that was sent to /v1/files"
        raise InvalidInput(f"{name}: {message}", param=name)
    try:
        return volume.place(path)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.message}", param=name) from None
