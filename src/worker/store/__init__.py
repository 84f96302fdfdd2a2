"""Finds models on the disk, checks whether they are complete, and downloads them.

An ``Artifact`` (``snapshot``) comes in: a directory or a repository, and what of it is loaded. Its
``ArtifactLocation`` goes out. ``places`` searches the disk; ``files`` knows which files vLLM loads,
``disk`` reads them, and ``manifest`` has the sizes of what a worker has downloaded. ``fetcher``
starts a child process for the artifacts that no place has: ``download`` runs there, with the lists
of ``hub``. The doctor asks ``hub`` about models without downloading them. An artifact that nobody
has raises ``ModelUnavailable`` (``refusals``), with a problem and a remedy for each ``Reason``.

This package's exports don't import huggingface_hub, which reads the environment on import; a worker
that finds all models on the disk does not need it. The build of the image imports ``download``
without the worker's settings.
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
