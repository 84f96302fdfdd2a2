"""Plants defects in the critical modules and counts those that their unit tests don't notice.

    python -m mutants [--count 100] [--jobs 2] [--only chunking]

cosmic-ray plants one defect at a time: a different comparison, a number off by one, a negated
condition. The selection of defects depends on the code alone, so two runs on the same code are
alike, and a change of the code replaces only a few defects. ``survivors.txt`` lists the defects
that no test notices. The exit status is 1 if another defect survives, or if a listed one no longer
does; its line must then be removed.
"""

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.commands
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.txt")
PYTHON = ROOT / ".venv" / "bin" / "python"
# Modules, and the tests that must notice their defects.
TESTED_BY = {
    "src/job_loop": (
        "tests/unit/job_loop tests/contract/test_sdk.py"
        "::test_a_missing_name_is_logged_and_leaves_the_jobs_to_the_loop_of_the_sdk"
    ),
    "src/worker/bridge.py": "tests/unit/test_bridge.py tests/unit/app/test_ends.py",
    "src/worker/chunking.py": "tests/unit/test_chunking.py",
    "src/worker/long_work": "tests/unit/long_work tests/unit/batches",
    "src/worker/routes/kinds.py": "tests/unit/routes/test_kinds.py",
    "src/worker/batches": "tests/unit/batches tests/unit/dialects/llm_engine/test_batches.py",
    "src/worker/fine_tunes": "tests/unit/fine_tunes",
    "src/worker/dialects/llm_engine": (
        "tests/unit/dialects/llm_engine tests/unit/dialects/openai/test_fine_tunes.py"
    ),
    "src/worker/dialects/openai/fine_tuning.py": "tests/unit/dialects/openai",
    "src/worker/volume/lease.py": "tests/unit/volume/test_lease.py",
    "src/worker/masking.py": "tests/unit/test_masking.py",
    "src/worker/logs/reader.py": "tests/unit/logs",
}
# The operators of cosmic-ray that are used. Of those that replace one operator by another, these
# are the ones that a person might confuse; most of the others fail on import or change nothing.
PLANTED_OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|ExceptionReplacer|ZeroIterationForLoop|RemoveDecorator"
    r"|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|BreakWithContinue|ContinueWithBreak"
    r"|UnaryOperator_Delete_Not|BinaryOperator_(Add_Sub|Sub_Add)"
    r"|ComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|In_NotIn|NotIn_In"
    r"|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt)))"
)
CREATE_MODE = WorkDB.Mode.create
# Timeout of the tests with a defect, as a multiple of their duration without one.
TIMEOUT_RATIO = 10


class Mutant(NamedTuple):
    """A defect that can be planted, and the tests that must notice it."""

    # Location and kind of the defect, from the code alone: independent of line numbers.
    name: str
    spec: MutationSpec
    tests: str


def rank(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.name.encode()).hexdigest()


def list_mutants() -> Iterator[Mutant]:
    """Yield all defects that can be planted in the working directory."""
    for path, tests in TESTED_BY.items():
        seen: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/w", CREATE_MODE) as work:
            cosmic_ray.commands.init(find_modules([Path(path)]), work, {})
            specs = [item.mutations[0] for item in work.work_items]
        for spec in specs:
            if not PLANTED_OPERATORS.fullmatch(spec.operator_name):
                continue
            line = spec.module_path.read_text().splitlines()[spec.start_pos[0] - 1].strip()
            operator = spec.operator_name.removeprefix("core/")
            name = f"{spec.module_path}: {spec.definition_name}: {operator}: {line}"
            seen[name] += 1
            yield Mutant(f"{name} #{seen[name]}", spec, tests)


def test_command(tests: str) -> str:
    return f"{shlex.quote(str(PYTHON))} -m pytest -x -q -m 'not slow' -p no:cacheprovider {tests}"


def enter_copy(folder: str) -> None:
    """Copy the repository for this process and change into the copy."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / ".models").symlink_to(ROOT / ".models")
    os.chdir(copy)


def seconds_without_defect(tests: str) -> float:
    """Run tests without a defect; return their duration.

    Raises:
        subprocess.CalledProcessError: If a test fails.
    """
    started_at = time.monotonic()
    subprocess.run(shlex.split(test_command(tests)), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started_at


def does_survive(mutant: Mutant, timeout_s: float) -> bool:
    """Plant a defect; return whether all tests pass with it."""
    result = mutate_and_test([mutant.spec], test_command(mutant.tests), timeout_s)
    if result.test_outcome not in (TestOutcome.SURVIVED, TestOutcome.KILLED):
        raise RuntimeError(f"{mutant.name}: {result.worker_outcome}, {result.output}")
    return bool(result.test_outcome is TestOutcome.SURVIVED)


def read_survivors() -> set[str]:
    return set(SURVIVORS.read_text().splitlines()) if SURVIVORS.exists() else set()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="number of defects (100)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="number of parallel processes"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only defects whose name contains it"
    )
    args = parser.parse_args()
    os.chdir(ROOT)
    chosen = sorted(list_mutants(), key=rank)[: args.count]
    chosen = [mutant for mutant in chosen if args.only in mutant.name]
    known = read_survivors() & {mutant.name for mutant in chosen}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.jobs, initializer=enter_copy, initargs=(folder,)) as pool,
    ):
        needed = sorted({mutant.tests for mutant in chosen})
        seconds = dict(zip(needed, pool.map(seconds_without_defect, needed), strict=True))
        timeouts_s = [TIMEOUT_RATIO * seconds[mutant.tests] for mutant in chosen]
        survivors = set()
        for mutant, survived in zip(
            chosen, pool.map(does_survive, chosen, timeouts_s), strict=True
        ):
            print("survives" if survived else "noticed ", mutant.name, flush=True)
            survivors |= {mutant.name} if survived else set()
    removed = (
        read_survivors() - {mutant.name for mutant in list_mutants()} if not args.only else set()
    )
    for name in sorted(survivors - known):
        print("No test notices:", name)
    for name in sorted((known - survivors) | removed):
        print("Now noticed or removed; delete it from survivors.txt:", name)
    print(f"{len(chosen)} defects, {len(survivors)} survive, {len(known)} of them known")
    return int(survivors != known or bool(removed))


if __name__ == "__main__":
    sys.exit(main())
