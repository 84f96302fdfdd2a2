"""The endpoint that clients by others are tried against."""

import pytest


@pytest.fixture(scope="session")
def full_featured(full_featured: dict[str, str]) -> dict[str, str]:
    """Hold a call's arguments to the tool's schema, as clients expect that extract data so."""
    return {**full_featured, "TOOL_STRICT_LEVEL": "parameter"}
