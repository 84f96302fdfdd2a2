"""Where the input and the output of LLM Engine's batches lie."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from worker.errors import Conflict, InvalidInput
from worker.files import PREFIX, Files
from worker.files.folders import holds
from worker.validation import of_field
from worker.volume import failures, ids, write_once, write_parts

INPUT, OUTPUT = "input_data_path", "output_data_path"
_URLS = ("http://", "https://")


def input_place(path: str, files: Files) -> Path:
    """Return where an input is: the id of a file, or a path on the volume.

    Raises:
        InvalidInput: it is an address, or a path that is not for callers.
        NoSuchObject: there is no such file.
        VolumeError: there is no volume.
    """
    if ids.fits(PREFIX, path):
        return files.content(files.get(path))
    with of_field(INPUT):
        _check_no_address(path, ", or the id of a file that was sent to /v1/files")
        return files.volume.input(path)


class Output:
    """The file that a batch writes its output to. Its methods are for threads.

    From the creation of the batch to its end, the file holds the batch's id, so that no other
    batch can write there.

    Args:
        path: as the caller named it.
        files: of the volume, with which it counts.
        batch_id: the batch's.
    """

    def __init__(self, path: str, files: Files, batch_id: str) -> None:
        self._path = path
        self._files = files
        self._mark = b'{"job_id": "%b"}\n' % batch_id.encode()

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve the file for the batch; an exception in the block releases it.

        Raises:
            InvalidInput: no file can be there, or not one of a caller's.
            Conflict: there is a file already, or another batch will write there.
            VolumeError: the volume fails, or there is none.
        """
        with of_field(OUTPUT):
            place = self._place()
            with failures():
                if not write_once(place, self._mark) and not self._is_reserved(place):
                    raise Conflict(f"{self._path}: there is a file already, or a batch's output")
        with contextlib.ExitStack() as unless_created:
            unless_created.callback(self.release)
            yield
            unless_created.pop_all()

    def write(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """Write the output.

        Args:
            parts: returns its content from the beginning.

        Raises:
            InvalidInput: no file can be there any more.
            Conflict: somebody else has put a file there.
            VolumeError: the volume fails.
        """
        with of_field(OUTPUT):
            place = self._place()
            with failures():
                if write_once(place, self._mark) or self._is_reserved(place):
                    write_parts(place, self._files.counted(parts()))
                elif not holds(place, parts()):
                    raise Conflict(f"{self._path}: somebody else has put a file there")

    def release(self) -> None:
        """Remove the file if the batch has not written its output."""
        with contextlib.suppress(InvalidInput), failures():
            place = self._place()
            if self._is_reserved(place):
                place.unlink(missing_ok=True)

    def _place(self) -> Path:
        _check_no_address(self._path)
        place = self._files.volume.written(self._path)
        first = next(parent for parent in place.parents if parent.exists())
        if place.is_dir() or not first.is_dir():
            raise InvalidInput(f"{self._path}: no file can be there")
        return place

    def _is_reserved(self, place: Path) -> bool:
        if not place.is_file():
            return False
        with place.open("rb") as opened:
            return opened.read(len(self._mark) + 1) == self._mark


def _check_no_address(path: str, otherwise: str = "") -> None:
    if path.startswith(_URLS):
        raise InvalidInput(
            "this worker fetches nothing from an address, and sends nothing to one: "
            f"a path on its volume, s3://<volume id>/key{otherwise}"
        )
