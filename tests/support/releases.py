"""The release of vLLM that the tests run on: most hold for all, some for the pinned one alone."""

import pytest
import vllm
from packaging.version import Version

# The release that pages, tables and lists of the repository are of.
PINNED = Version("0.32")

_INSTALLED = Version(Version(vllm.__version__).public)


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test with releases before ``release``, such as "0.31": the reason is theirs."""
    return pytest.mark.skipif(Version(release) > _INSTALLED, reason=reason)


of_the_pinned = pytest.mark.skipif(
    _INSTALLED.release[:2] != PINNED.release,
    reason=f"compares the repository with vLLM {PINNED}",
)
