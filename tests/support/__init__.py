"""Code that tests share: scripted engines, processes, hubs, models and tables."""

from pathlib import Path

# Root of the repository.
ROOT = Path(__file__).parents[2]
