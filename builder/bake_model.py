"""Puts a model into the image: downloads its files, and writes a manifest for the worker.

The Dockerfile runs this if MODEL_NAME is set. huggingface_hub finds the token by itself.
"""

import argparse
import json
import logging
import sys
from argparse import Namespace
from pathlib import Path

from worker.errors import StartFailed
from worker.store import ACCESS, Found, Kind, Places, Reason, Unavailable, Wanted, disk
from worker.store.download import obtain

# The path that the worker reads (BAKED in worker.settings.sources): nothing is mounted there.
MANIFEST = Path("/local_model_args.json")
# The mount point of network volumes.
VOLUME = Path("/runpod-volume")
# Reasons that a token may change.
OF_ACCESS = ACCESS | {Reason.MISSING}


def main() -> int:
    """Download what is wanted, and write the manifest; return the exit status."""
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("worker").setLevel(logging.INFO)
    command = read_command_line()
    if VOLUME in (command.base_path, *command.base_path.parents):
        print(f"BASE_PATH={command.base_path}: a network volume, mounted there, hides the model.")
        print("Leave BASE_PATH unset while building, or set it to /models")
    places = Places(volume=command.base_path / "huggingface-cache" / "hub")
    try:
        obtained = [obtain_whole(wanted, places) for wanted in everything_wanted(command)]
    except StartFailed as error:
        print(error.message)
        if isinstance(error, Unavailable) and error.reason in OF_ACCESS:
            print("While building, HF_TOKEN is given as a secret: --secret id=HF_TOKEN")
        return 1
    # A directory of the base image has no commit, and is found without the manifest.
    models = [described(found) for found in obtained if found.commit]
    manifest = {"settings": settings(command), "models": models}
    command.manifest.write_text(json.dumps(manifest, indent=2) + "\n")
    print(f"The worker is told by {command.manifest}")
    return 0


def read_command_line() -> Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True)
    for name in ("--revision", "--tokenizer", "--tokenizer-revision", "--quantization"):
        parser.add_argument(name, help="blank counts as not given")
    parser.add_argument("--base-path", type=Path, required=True, help="what the model lies below")
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    return parser.parse_args()


def everything_wanted(command: Namespace) -> list[Wanted]:
    """Return what is downloaded: code, too, since only the worker knows whether it is trusted."""
    wanted = [Wanted(command.model, command.revision or None, code=True)]
    if command.tokenizer or command.tokenizer_revision:
        wanted.append(
            Wanted(
                command.tokenizer or command.model,
                command.tokenizer_revision or None,
                kind=Kind.TOKENIZER,
                code=True,
                setting="TOKENIZER_NAME",
            )
        )
    return wanted


def obtain_whole(wanted: Wanted, places: Places) -> Found:
    """Obtain a model, and check its files: an image without weights must not be built.

    Raises:
        StartFailed: it is unavailable, or can't be loaded.
    """
    found = obtain(wanted, places)
    if lacks := disk.lacks(found.place, wanted):
        raise StartFailed(f"{wanted} can't be loaded: {lacks}")
    print(f"{found}")
    return found


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


def described(found: Found) -> dict[str, str | None]:
    return {
        "model": found.wanted.model,
        "revision": found.wanted.revision,
        "commit": found.commit,
        "place": str(found.place),
    }


if __name__ == "__main__":
    sys.exit(main())
