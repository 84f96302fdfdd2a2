"""The demo model's tokenizer, which the trainer's tests share."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, TokenizersBackend


@pytest.fixture(scope="session")
def tokenizer(demo_model: Path) -> TokenizersBackend:
    found = AutoTokenizer.from_pretrained(demo_model, local_files_only=True)
    assert isinstance(found, TokenizersBackend)
    return found
