"""Downloads a model into the image, and writes a manifest for the worker.

The Dockerfile runs this if MODEL_NAME is set. huggingface_hub finds the token by itself.
"""

import argparse
import json
import logging
import sys
from argparse import Namespace
from pathlib import Path

from worker.errors import StartFailed
from worker.store import (
    ACCESS_REASONS,
    Artifact,
    ArtifactKind,
    ArtifactLocation,
    ModelUnavailable,
    Places,
    Reason,
    disk,
)
from worker.store.download import obtain_artifact

# The path from which the worker reads the manifest (BAKED_MODEL_FILE in worker.settings.sources).
# Nothing is mounted there.
MANIFEST = Path("/local_model_args.json")
# Mount point of network volumes.
VOLUME = Path("/runpod-volume")
# Reasons for which a token may help.
TOKEN_REASONS = ACCESS_REASONS | {Reason.MISSING}


def main() -> int:
    """Download the model and write the manifest; return the exit status."""
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("worker").setLevel(logging.INFO)
    command = read_command_line()
    if VOLUME in (command.base_path, *command.base_path.parents):
        print(f"BASE_PATH={command.base_path}: a network volume, mounted there, hides the model.")
        print("Leave BASE_PATH unset while building, or set it to /models")
    places = Places(volume=command.base_path / "huggingface-cache" / "hub")
    try:
        locations = [obtain_complete(artifact, places) for artifact in list_artifacts(command)]
    except StartFailed as error:
        print(error.message)
        if isinstance(error, ModelUnavailable) and error.reason in TOKEN_REASONS:
            print("During the build, pass HF_TOKEN as a secret: --secret id=HF_TOKEN")
        return 1
    # A directory of the base image has no commit; the worker finds it without the manifest.
    models = [describe(location) for location in locations if location.commit]
    manifest = {"settings": settings(command), "models": models}
    command.manifest.write_text(json.dumps(manifest, indent=2) + "\n")
    print(f"The worker reads {command.manifest}")
    return 0


def read_command_line() -> Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True)
    for name in ("--revision", "--tokenizer", "--tokenizer-revision", "--quantization"):
        parser.add_argument(name, help="a blank value counts as unset")
    parser.add_argument("--base-path", type=Path, required=True, help="directory for the model")
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    return parser.parse_args()


def list_artifacts(command: Namespace) -> list[Artifact]:
    """Return the artifacts to download, including code: only the worker knows if it is trusted."""
    artifacts = [Artifact(command.model, command.revision or None, code=True)]
    if command.tokenizer or command.tokenizer_revision:
        artifacts.append(
            Artifact(
                command.tokenizer or command.model,
                command.tokenizer_revision or None,
                kind=ArtifactKind.TOKENIZER,
                code=True,
                setting="TOKENIZER_NAME",
            )
        )
    return artifacts


def obtain_complete(artifact: Artifact, places: Places) -> ArtifactLocation:
    """Download a model and check its files, so that no image without weights is built.

    Raises:
        StartFailed: If the model is unavailable or can't be loaded.
    """
    location = obtain_artifact(artifact, places)
    if problem := disk.loading_problem(location.directory, artifact):
        raise StartFailed(f"{artifact} can't be loaded: {problem}")
    print(f"{location}")
    return location


def settings(command: Namespace) -> dict[str, str]:
    """Return the worker's settings for this model."""
    values = {
        "MODEL_NAME": command.model,
        "MODEL_REVISION": command.revision,
        "TOKENIZER_NAME": command.tokenizer,
        "TOKENIZER_REVISION": command.tokenizer_revision,
        "QUANTIZATION": command.quantization,
    }
    return {name: value for name, value in values.items() if value}


def describe(location: ArtifactLocation) -> dict[str, str | None]:
    return {
        "model": location.artifact.model,
        "revision": location.artifact.revision,
        "commit": location.commit,
        "place": str(location.directory),
    }


if __name__ == "__main__":
    sys.exit(main())
