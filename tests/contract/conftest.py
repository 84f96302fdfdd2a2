"""What the tests of this folder share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _environ() -> Iterator[None]:
    """Leave the environment as it was: a start completes it for the libraries below."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
