"""The steps of a release, as the Makefile calls them: ``python -m release``."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from release.issue import open_once
from release.newest import newest_vllm
from release.plan import ROOT, Plan, image_tag, plan, vllm_version

_BASE = ROOT / "builder" / "release" / "base-image.txt"
_SBOM = ROOT / ".release" / "sbom.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("dry", "check", "notes", "outputs", "publish"):
        step = steps.add_parser(name)
        step.add_argument("tag", help="of git, such as v0.1.0")
        step.add_argument("--image", default="llm-worker", help="its name, without a tag")
    for name in ("base-image", "newest", "watch"):
        steps.add_parser(name)
    issue = steps.add_parser("issue")
    issue.add_argument("title")
    issue.add_argument("body")
    words = parser.parse_args()
    if words.step == "issue":
        print(open_once(words.title, words.body))
    elif words.step == "newest":
        print(newest_vllm())
    elif words.step == "watch":
        watch()
    elif words.step == "base-image":
        pin_base_image()
    else:
        _RELEASING[words.step](plan(words.tag, words.image))


def dry(release: Plan) -> None:
    """Print what a release would be, and what it lacks."""
    section = release.section
    print(f"tag     {release.tag}")
    for image in release.images:
        print(f"image   {image}")
    print(f"base    {release.base}")
    for problem in release.problems:
        print(f"missing {problem}")
    print(f"sbom    {_SBOM.relative_to(ROOT)}: {count_packages(_SBOM)} packages")
    print(f"notes   {len(section.notes.splitlines()) if section else 0} lines\n")
    print(section.notes if section else "")


def count_packages(sbom: Path) -> int:
    """Count the components of a CycloneDX document; 0 if there is none yet (make sbom)."""
    return len(json.loads(sbom.read_text())["components"]) if sbom.is_file() else 0


def check(release: Plan) -> None:
    """Exit with status 1 if something is missing."""
    if release.problems:
        sys.exit("\n".join(release.problems))


def notes(release: Plan) -> None:
    """Print the release notes."""
    if release.section is None:
        sys.exit("\n".join(release.problems))
    print(release.section.notes)


def outputs(release: Plan) -> None:
    """Print what the step of a workflow that builds the image needs."""
    print(f"version={image_tag()}")
    print(f"tags={','.join(release.images)}")
    print(f"base-image={release.base}")


def publish(release: Plan) -> None:
    """Make a release on GitHub, with its notes; the hub of the platform looks for it."""
    check(release)
    view = ("gh", "repo", "view", "--json=url", "--jq=.url")
    url = subprocess.run(view, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(linked(release.section.notes if release.section else "", url, release.tag))
        file.flush()
        words = ("--verify-tag", f"--title={release.tag}", f"--notes-file={file.name}")
        subprocess.run(("gh", "release", "create", release.tag, *words), check=True)


def linked(notes: str, url: str, tag: str) -> str:
    """Make links to the repository's files absolute: a release is no page of the repository."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/{tag}/", notes)


def pin_base_image() -> None:
    """Write the digest that the base image's tag has now."""
    tag = f"vllm/vllm-openai:v{vllm_version()}"
    inspect = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")
    asked = subprocess.run((*inspect, tag), check=True, stdout=subprocess.PIPE, text=True)
    _BASE.write_text(f"{tag}@{asked.stdout.strip()}\n")
    print(_BASE.read_text(), end="")


def watch() -> None:
    """Open an issue if there is a newer vLLM than the image's."""
    newest, ours = newest_vllm(), vllm_version()
    if newest == ours:
        print(f"vLLM {ours} is the newest")
        return
    body = (
        f"The worker is for vLLM {ours}. What to do: CONTRIBUTING.md, *Moving to a new vLLM*.\n\n"
        f"`make vllm-news VLLM={newest}` lists what moved, `make test-vllm VLLM={newest}` tests it."
    )
    print(open_once(f"vLLM {newest} is out", body))


_RELEASING = {"dry": dry, "check": check, "notes": notes, "outputs": outputs, "publish": publish}

if __name__ == "__main__":
    main()
