"""What is known of a file besides its content."""

import time
from typing import Literal

from worker.validation import Strict

# What callers may upload a file for. Results of the worker's own have others: "batch_output".
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
# Of a file that is uploaded without one.
PURPOSE: Purpose = "fine-tune"


class StoredFile(Strict):
    """A file that exists: its content is complete, and never changes.

    Args:
        id: ``file-`` and 24 letters and digits.
        bytes: of its content.
        created_at: seconds since 1970.
        filename: what its caller calls it, which names nothing on the disk.
        purpose: what it is for, in OpenAI's words.
        expires_at: seconds since 1970; None: never.
        path: where its content lies on the volume, if it is a caller's own file; never shown.
    """

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    path: str | None = None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()
