"""Settings of the endpoint for the tests with third-party clients."""

from pathlib import Path

import pytest
from support.clients.llm_engine import WORKER_SETTINGS
from support.models.lora import make_adapter


@pytest.fixture(scope="session")
def full_settings(
    full_settings: dict[str, str], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Add adapters and strict tool calls, since clients extract data with a tool's schema."""
    adapter = tmp_path_factory.mktemp("adapters") / "listed"
    make_adapter(adapter, demo_model, seed=2)
    settings = {"LORA_MODULES": f"listed={adapter}", "TOOL_STRICT_LEVEL": "parameter"}
    return {**full_settings, **WORKER_SETTINGS, **settings}
