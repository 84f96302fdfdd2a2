"""A release without its publication: builds what can be built here, and shows all its parts."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

from release.notes import news_files
from release.plan import ROOT, Plan, worker_version

# Sessions of nox, in .venv.
_SESSIONS = ("package", "sbom", "site")


def build_parts() -> list[str]:
    """Build the wheel, the SBOM and the site; return a problem for each that can't be built."""
    problems = []
    for session in _SESSIONS:
        print(f"building   nox -s {session}", file=sys.stderr)
        command = (sys.executable, "-m", "nox", "--no-error-on-missing-interpreters", "-s", session)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            problems.append(f"nox -s {session} fails here")
    return problems


def show(release: Plan, problems: list[str]) -> None:
    """Print all parts of a release, those that only the workflow makes, and what is missing.

    Args:
        release: The release.
        problems: More of them, besides those of the release.
    """
    print(f"tag        {release.tag} of {_run('git', 'describe', '--always', '--dirty')}")
    for image in release.images:
        print(f"image      {image}")
    print(f"base       {release.base}")
    for pattern, part in (("*.whl", "wheel"), ("*.tar.gz", "sdist")):
        problems += _show_files(part, sorted((ROOT / "dist").glob(pattern)))
    problems += _show_sbom(ROOT / "dist" / "sbom.json")
    problems += _show_site(ROOT / ".site" / "html")
    _show_notes(release)
    guide = (ROOT / "docs" / "releasing.md").read_text()
    print("\nThe workflow of the release adds the provenance and the signatures. To verify them:\n")
    print(read_verification(guide))
    print()
    for problem in (*release.problems, *problems):
        print(f"missing    {problem}")
    print("\nOnly an owner can do these, once (docs/releasing.md):\n")
    print(read_owners_list(guide))


def _show_files(part: str, files: list[Path]) -> list[str]:
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        name = file.relative_to(ROOT)
        print(f"{part:<11}{name}, {file.stat().st_size:,} bytes, sha256 {digest}")
    wrong = [file.name for file in files if f"-{worker_version()}" not in file.name]
    if wrong or len(files) != 1:
        return [f"dist/ has no single {part} of this version: run nox -s package"]
    return []


def _show_sbom(file: Path) -> list[str]:
    if not file.is_file():
        return ["dist/sbom.json: run nox -s sbom"]
    content = json.loads(file.read_text())
    kind = f"{content['bomFormat']} {content['specVersion']}"
    print(f"sbom       {file.relative_to(ROOT)}, {kind}: {len(content['components'])} packages")
    print("           (those of the tests; BuildKit adds one of the whole image to it)")
    return []


def _show_site(folder: Path) -> list[str]:
    pages = [page for page in folder.rglob("*.html") if page.name != "404.html"]
    if not (folder / "index.html").is_file():
        return [".site/html: run nox -s site"]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"site       {folder.relative_to(ROOT)}: {len(pages)} pages, {size / 1e6:.1f} MB")
    return []


def _show_notes(release: Plan) -> None:
    if section := release.section:
        headings = re.findall(r"(?m)^### (.+)$", section.notes)
        entries = len(re.findall(r"(?m)^- ", section.notes))
        print(f"notes      CHANGELOG.md, [{section.version}]: {entries} entries about")
        print(f"           {', '.join(headings)}")
    print(f"news       changes/: {len(news_files(ROOT))} files that are not in CHANGELOG.md")


def read_verification(guide: str) -> str:
    """Return the commands with which users verify the parts of a release."""
    (commands,) = re.findall(r"```sh\n(.+?)```", _read_section(guide, "Verify a release"), re.S)
    return str(commands).strip()


def read_owners_list(guide: str) -> str:
    """Return the list of what only an owner can do."""
    section = _read_section(guide, "What only an owner can do")
    return "\n".join(line for line in section.splitlines() if re.match(r"\d+\. ", line))


def _read_section(guide: str, heading: str) -> str:
    return guide.split(f"\n## {heading}\n")[1].partition("\n## ")[0]


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unpacked archive"
