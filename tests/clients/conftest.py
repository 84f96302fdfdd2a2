"""The endpoint for the tests with third-party clients."""

import pytest


@pytest.fixture(scope="session")
def full_featured(full_featured: dict[str, str]) -> dict[str, str]:
    """Add strict tool calls: clients extract data by a tool's schema."""
    return {**full_featured, "TOOL_STRICT_LEVEL": "parameter"}
