"""Sends a file to the volume in parts, some at once, and goes on where another process was cut."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from s3transfer.utils import ReadFileChunk

from llm_worker_client.volume.bucket import Bucket, Part, Stored
from llm_worker_client.volume.contents import Content, Span, is_md5
from llm_worker_client.volume.errors import Changed, Damaged, Stopped
from llm_worker_client.volume.progress import Progress


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that is on the volume.

    Args:
        key: its path from the volume's root.
        size: in bytes.
        found: bytes that were on the volume already.
        moved: bytes that were sent, those of failed tries too.
    """

    key: str
    size: int
    found: int
    moved: int


class Sending:
    """Sends one file.

    Args:
        bucket: where to.
        key: its name there.
        content: the file.
        progress: counts its bytes.
        stop: set to give up.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        content: Content,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._content = content
        self._progress = progress
        self._stop = stop

    def send(self, at_once: int) -> Sent:
        """Send what is not there yet.

        Args:
            at_once: parts at the same time.

        Raises:
            VolumeError: it failed; a further call goes on with the parts that are there.
            OSError: the file can't be read.
        """
        unfinished = self._bucket.unfinished(self._key)
        if not unfinished and self._there() is not None:
            self._progress.find(self._content.size)
        elif not unfinished and len(self._content.spans) == 1:
            self._put(self._content.spans[0], self._bucket_put)
            self._check()
        else:
            self._send_parts(unfinished, at_once)
            self._check()
        return Sent(self._key, self._content.size, self._progress.found, self._progress.moved)

    def _send_parts(self, unfinished: list[str], at_once: int) -> None:
        upload, there = self._upload(unfinished)
        executor = ThreadPoolExecutor(at_once, "volume")
        try:
            sending = [
                executor.submit(self._send_part, upload, span, there.get(span.number))
                for span in self._content.spans
            ]
            wait(sending, return_when=FIRST_EXCEPTION)
            for done in sending:
                if done.done():
                    done.result()
            etags = [done.result() for done in sending]
        except BaseException:
            self._stop.set()
            raise
        finally:
            executor.shutdown(cancel_futures=True)
        self._check_unchanged()
        self._bucket.complete(self._key, upload, etags, self._there)

    def _upload(self, unfinished: list[str]) -> tuple[str, dict[int, Part]]:
        """Return the upload to go on with, and its parts; a new one, if none fits."""
        for id in unfinished:
            there = {part.number: part for part in self._bucket.parts(self._key, id)}
            # Parts with other bytes are replaced; one that the file has not would stay.
            if max(there, default=0) <= len(self._content.spans):
                return id, there
            self._bucket.abort(self._key, id)
        return self._bucket.begin(self._key), {}

    def _send_part(self, upload: str, span: Span, there: Part | None) -> str:
        """Send a part, unless it is there with the same bytes; return its ETag."""
        if there is not None and there.etag == self._content.md5(span).hex():
            self._progress.find(span.size)
            return there.etag

        def put(body: ReadFileChunk, md5: bytes) -> str:
            return self._bucket.put_part(self._key, upload, span.number, body, md5)

        return self._put(span, put)

    def _bucket_put(self, body: ReadFileChunk, md5: bytes) -> str:
        self._bucket.put(self._key, body, md5)
        return md5.hex()

    def _put(self, span: Span, put: Callable[[ReadFileChunk, bytes], str]) -> str:
        """Send bytes until they have arrived; return their ETag."""
        md5 = self._content.md5(span)

        def call() -> str:
            moved = 0

            def move(bytes_transferred: int) -> None:
                nonlocal moved
                if self._stop.is_set():
                    raise Stopped("The transfer was stopped.")
                moved += bytes_transferred
                self._progress.move(bytes_transferred)

            path, size = str(self._content.path), span.size
            with ReadFileChunk.from_filename(path, span.offset, size, [move]) as body:
                try:
                    return put(body, md5)
                except BaseException:
                    self._progress.lose(moved)
                    raise

        etag = self._bucket.again(call)
        if is_md5(etag) and etag != md5.hex():
            raise Damaged(f"A part of {self._key} has arrived with other bytes: try again.")
        return etag

    def _there(self) -> Stored | None:
        """Return the file on the volume, if it has the same bytes."""
        found = self._bucket.find(self._key)
        if found is None or found.size != self._content.size:
            return None
        return found if self._content.fits(found.etag) else None

    def _check(self) -> None:
        """Check what is on the volume now.

        Raises:
            Changed: the local file has changed meanwhile.
            Damaged: it has another size or checksum than the local file.
        """
        self._check_unchanged()
        found = self._bucket.find(self._key)
        size = self._content.size
        if found is None or found.size != size or self._content.fits(found.etag) is False:
            raise Damaged(f"{self._key} has arrived with other bytes: try again.")

    def _check_unchanged(self) -> None:
        if not self._content.is_as_it_was():
            raise Changed(f"{self._content.path} has changed while it was sent: start again.")
