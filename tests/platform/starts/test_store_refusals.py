"""Why a model is unavailable: one line with the setting to change, and nothing left behind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.hub.downloads import (
    NAME,
    PREFETCH,
    TOKEN,
    assert_prefetched,
    assert_refused,
    environ,
    found,
    hub_with,
    leases,
)
from support.hub.server import MEMBER, STRANGER, Hub
from support.ports import CLOSED
from support.processes.commands import Ran, run

from worker.store import Found, NotFound

SHARD = "model-00002-of-00003.safetensors"


@dataclass(frozen=True)
class Trouble:
    """A fault of the hub or of the settings, and how it is mended.

    ``named`` are words of the message, ``mended`` the settings of the start afterwards.
    """

    named: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    spoil: Callable[[Hub], object] = id
    mend: Callable[[Hub], object] = id
    mended: dict[str, str] = field(default_factory=dict)


def guard(**guarded: bool) -> Callable[[Hub], object]:
    def spoil(served: Hub) -> None:
        for name, on in guarded.items():
            setattr(served.repositories[NAME], name, on)

    return spoil


def rename(served: Hub) -> None:
    served.repositories["org/new"] = served.repositories.pop(NAME)


def rename_back(served: Hub) -> None:
    served.repositories[NAME] = served.repositories.pop("org/new")


def add_revision(served: Hub) -> None:
    revisions = served.repositories[NAME].revisions
    revisions["v2"] = revisions["main"]


TROUBLES = {
    "a wrong checksum": Trouble(
        ("not what it announces", "MODEL_REVISION"),
        spoil=lambda served: served.wrong.add(SHARD),
        mend=lambda served: served.wrong.clear(),
    ),
    "a revision that does not exist": Trouble(
        (f"{NAME}@v2", "no such revision", "MODEL_REVISION"),
        {"MODEL_REVISION": "v2"},
        mend=add_revision,
        mended={"MODEL_REVISION": "v2"},
    ),
    "a gated repository without a token": Trouble(
        ("gated", "HF_TOKEN is not set", "licence"),
        spoil=guard(gated=True),
        mended={"HF_TOKEN": MEMBER},
    ),
    "a gated repository that the token gives no access to": Trouble(
        ("gated", "HF_TOKEN gives no access"),
        {"HF_TOKEN": STRANGER},
        spoil=guard(gated=True),
        mended={"HF_TOKEN": MEMBER},
    ),
    "a private repository": Trouble(
        ("no such repository", "MODEL_NAME", "HF_TOKEN"),
        spoil=guard(private=True),
        mended={"HF_TOKEN": MEMBER},
    ),
    "a repository that does not exist": Trouble(
        ("no such repository", "MODEL_NAME"), spoil=rename, mend=rename_back
    ),
    "a token that the hub does not know": Trouble(
        ("refuses HF_TOKEN", "set HF_TOKEN"), {"HF_TOKEN": TOKEN}
    ),
    "a token in quotes of a text processor": Trouble(
        ("HF_TOKEN holds characters",), {"HF_TOKEN": f"\N{LEFT DOUBLE QUOTATION MARK}{TOKEN}"}
    ),
    "no network": Trouble(
        ("does not answer", "HF_ENDPOINT"), {"HF_ENDPOINT": f"http://127.0.0.1:{CLOSED}"}
    ),
}

# Tried in every run; the others take two starts for every row, and are slow tests.
ALWAYS = ("a wrong checksum", "a gated repository without a token")


@dataclass(frozen=True)
class Tried:
    """A start in trouble, the files that it left on the volume, and the start after the repair."""

    ran: Ran
    left: Found | NotFound
    held: list[str]
    mended: Ran


def get_into(trouble: Trouble, source: Path, base: Path) -> Tried:
    """Start in trouble, with a hub and a volume of its own; mend it, and start once more."""
    with hub_with(source) as served:
        trouble.spoil(served)
        ran = run(environ(served, base, **trouble.settings), *PREFETCH)
        left, held = found(base), leases(base)
        trouble.mend(served)
        mended = assert_prefetched(served, source, base, **trouble.mended)
    return Tried(ran, left, held, mended)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow) for name in TROUBLES],
)
def test_trouble_is_reported_in_a_line_and_once_it_is_over_the_next_start_succeeds(
    source: Path, tmp_path: Path, name: str
) -> None:
    result = get_into(TROUBLES[name], source, tmp_path)
    assert_refused(result.ran, NAME, *TROUBLES[name].named)
    assert isinstance(result.left, NotFound)
    assert result.held == []
    for token in (TOKEN, MEMBER):
        assert token not in result.mended.stdout + result.mended.stderr


def test_a_renamed_model_is_downloaded_and_its_new_name_logged(
    source: Path, tmp_path: Path
) -> None:
    with hub_with(source) as served:
        rename(served)
        served.moved[NAME] = "org/new"
        ran = assert_prefetched(served, source, tmp_path)
        assert f"{NAME} is called org/new now: set MODEL_NAME to that" in ran.stderr
        assert len(served.sent) == len({part.path for part in served.sent})
