"""What the tests share: scripted parts, processes, hubs, models and tables."""

from pathlib import Path

# Of the repository.
ROOT = Path(__file__).parents[2]
