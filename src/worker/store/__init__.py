"""Finds models on the disk, checks whether they are complete, and downloads them.

This package's exports don't import huggingface_hub, which reads the environment on import; a worker
that finds all models on the disk does not need it.
"""

from worker.store.places import BakedModel, Places, resolve_on_disk
from worker.store.refusals import ACCESS_REASONS, ModelUnavailable, Reason
from worker.store.snapshot import (
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    File,
    Origin,
    Snapshot,
    UnlocatedArtifact,
)

__all__ = [
    "ACCESS_REASONS",
    "Artifact",
    "ArtifactKind",
    "ArtifactLocation",
    "BakedModel",
    "File",
    "ModelUnavailable",
    "Origin",
    "Places",
    "Reason",
    "Snapshot",
    "UnlocatedArtifact",
    "resolve_on_disk",
]
