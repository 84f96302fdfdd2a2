"""The endpoint for the tests with third-party clients."""

from pathlib import Path

import pytest
from support.clients.llm_engine import SERVING
from support.models.lora import make_adapter


@pytest.fixture(scope="session")
def full_featured(
    full_featured: dict[str, str], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Add adapters, and strict tool calls: clients extract data by a tool's schema."""
    listed = tmp_path_factory.mktemp("adapters") / "listed"
    make_adapter(listed, demo_model, seed=2)
    more = {"LORA_MODULES": f"listed={listed}", "TOOL_STRICT_LEVEL": "parameter"}
    return {**full_featured, **SERVING, **more}
