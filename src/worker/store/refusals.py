"""Why a model is unavailable, as an error that names the setting to change."""

from enum import Enum

from worker.errors import StartFailed
from worker.store.snapshot import Wanted


class Reason(Enum):
    """Why a model is unavailable: the problem, and the remedy.

    {setting} is the setting that names the model, {revision} its revision's.
    """

    NOT_A_REPOSITORY = (
        "neither a directory nor a repository's name",
        "set {setting} to owner/name, or to the whole path of a directory",
    )
    OFFLINE = (
        "not complete on the disk, and HF_HUB_OFFLINE forbids to ask the hub",
        "unset HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE), or download the model first",
    )
    TOKEN_MISSING = (
        "the repository is gated, and HF_TOKEN is not set",
        "accept its licence on its page on the hub, then set HF_TOKEN",
    )
    NO_ACCESS = (
        "the repository is gated, and HF_TOKEN gives no access to it",
        "accept its licence on its page on the hub, as the owner of the token",
    )
    MISSING = (
        "the hub has no such repository, or hides it",
        "mend {setting}; for a private repository set HF_TOKEN to a token that may read it",
    )
    REVISION_MISSING = (
        "the repository has no such revision",
        "set {revision} to a branch, a tag or a commit that it has",
    )
    BAD_TOKEN = ("the hub refuses HF_TOKEN", "set HF_TOKEN to a new token, or unset it")
    ODD_TOKEN = (
        "HF_TOKEN holds characters that no token has",
        "copy it again, without quotation marks, spaces and line breaks",
    )
    UNREACHABLE = (
        "the hub does not answer",
        "look whether it can be reached from here (HF_ENDPOINT names another), and try again",
    )
    RATE_LIMITED = (
        "the hub grants no more requests for now",
        "try again later, or set HF_TOKEN: whoever is known is granted more",
    )
    HUB_FAILS = ("the hub answers with an error of its own", "try again later")
    NO_FILES = (
        "the repository has nothing that could be loaded",
        "set {setting} to one with safetensors, or LOAD_FORMAT to the format that it has",
    )
    WRONG_CHECKSUM = (
        "what the hub sends is not what it announces",
        "try again; if that stays, set {revision} to another commit",
    )
    NO_SPACE = (
        "there is not enough room to download it",
        "take a larger volume or container disk, or set BASE_PATH to where there is room",
    )
    FULL_DISK = (
        "this machine's disk is full",
        "take a larger container disk, or a network volume, which all workers share",
    )
    UNWRITABLE = (
        "it can't be stored",
        "attach a volume that can be written to, or set BASE_PATH to another directory",
    )


# What another worker may not meet, or this one in a minute.
PASSING = frozenset(
    {
        Reason.UNREACHABLE,
        Reason.RATE_LIMITED,
        Reason.HUB_FAILS,
        Reason.WRONG_CHECKSUM,
        Reason.FULL_DISK,
    }
)
# What is about who may read the repository.
ACCESS = frozenset({Reason.TOKEN_MISSING, Reason.NO_ACCESS, Reason.BAD_TOKEN, Reason.ODD_TOKEN})


class WrongChecksumError(OSError):
    """A file that the hub has sent is not the one that it had announced."""


class Unavailable(StartFailed):
    """A model is neither on the disk nor to be downloaded.

    ``problem`` names the model and says what is wrong, ``remedy`` what can be done.

    Args:
        wanted: the model.
        reason: chooses the message.
        detail: added to the problem, in brackets.
    """

    def __init__(self, wanted: Wanted, reason: Reason, detail: str = "") -> None:
        problem, remedy = reason.value
        setting = wanted.setting
        revision = setting.replace("_NAME", "_REVISION")
        if revision == setting:
            # Draft models and adapters have no setting for the revision alone.
            revision = f"the revision in {setting}"
        self.problem = f"{wanted}: {problem}{detail and f' ({detail})'}"
        self.remedy = remedy.format(setting=setting, revision=revision)
        super().__init__(f"{self.problem}: {self.remedy}")
        self.everywhere = reason not in PASSING
        self.wanted, self.reason, self.detail = wanted, reason, detail
