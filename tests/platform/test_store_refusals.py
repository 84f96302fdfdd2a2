"""Why a model is unavailable: one line with the setting to change, and nothing left behind."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
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
    repository,
)
from support.hub.server import MEMBER, STRANGER, Hub
from support.processes.commands import Ran, run
from support.processes.side_by_side import side_by_side

from worker.store import Found, NotFound

SHARD = "model-00002-of-00003.safetensors"


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


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
    "no network": Trouble(("does not answer", "HF_ENDPOINT"), {"HF_ENDPOINT": closed_port()}),
}


@dataclass(frozen=True)
class Tried:
    """A start in trouble, what it left on the volume, and the start after it was mended."""

    ran: Ran
    left: Found | NotFound
    held: list[str]
    mended: Ran


@pytest.fixture(scope="module")
def source(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("source") / "files", demo_model)


@pytest.fixture(scope="module")
def tried(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Tried]]:
    """Run all troubles side by side, each with its own hub and volume."""

    def start(trouble: Trouble) -> Tried:
        base = tmp_path_factory.mktemp("volume")
        with hub_with(source) as served:
            trouble.spoil(served)
            ran = run(environ(served, base, **trouble.settings), *PREFETCH)
            left, held = found(base), leases(base)
            trouble.mend(served)
            mended = assert_prefetched(served, source, base, **trouble.mended)
        return Tried(ran, left, held, mended)

    with side_by_side(
        {name: partial(start, trouble) for name, trouble in TROUBLES.items()}
    ) as result:
        yield result


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_is_told_in_a_line_and_once_it_is_over_the_next_start_does_it_all(
    tried: Callable[[str], Tried], name: str
) -> None:
    result = tried(name)
    assert_refused(result.ran, NAME, *TROUBLES[name].named)
    assert isinstance(result.left, NotFound)
    assert result.held == []
    for token in (TOKEN, MEMBER):
        assert token not in result.mended.stdout + result.mended.stderr


def test_a_model_that_has_another_name_now_is_downloaded_and_the_name_told(
    source: Path, tmp_path: Path
) -> None:
    with hub_with(source) as served:
        rename(served)
        served.moved[NAME] = "org/new"
        ran = assert_prefetched(served, source, tmp_path)
        assert f"{NAME} is called org/new now: set MODEL_NAME to that" in ran.stderr
        assert len(served.sent) == len({part.path for part in served.sent})
