"""The installed release of vLLM, and marks for tests that need certain releases."""

import pytest
import vllm
from packaging.version import Version

# The release that the repository's pages, tables and lists describe.
PINNED = Version("0.32")

_INSTALLED = Version(Version(vllm.__version__).public)


def needs_vllm(release: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test with releases before ``release``, for example "0.31", for this reason."""
    return pytest.mark.skipif(Version(release) > _INSTALLED, reason=reason)


needs_pinned_vllm = pytest.mark.skipif(
    _INSTALLED.release[:2] != PINNED.release,
    reason=f"compares the repository with vLLM {PINNED}",
)
