"""Reasons why a model is unavailable, and the error that names the setting to change."""

from enum import Enum

from worker.errors import StartFailed
from worker.store.snapshot import Artifact


class Reason(Enum):
    """Why a model is unavailable: descriptions of the problem and of the remedy.

    {setting} and {revision} are replaced by the names of the model's settings, {prefix} by the
    prefix of its engine's settings, and {detail} by the argument of ``ModelUnavailable``.
    """

    NOT_A_REPOSITORY = (
        "neither a directory nor a repository's name",
        "set {setting} to owner/name, or to the whole path of a directory",
    )
    OFFLINE = (
        "not complete on the disk, and HF_HUB_OFFLINE forbids requests to the hub",
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
        "correct {setting}; for a private repository, set HF_TOKEN to a token that may read it",
    )
    REVISION_MISSING = (
        "the repository has no such revision",
        "set {revision} to a branch, a tag or a commit that it has",
    )
    BAD_TOKEN = ("the hub refuses HF_TOKEN", "set HF_TOKEN to a new token, or unset it")
    ODD_TOKEN = (
        "HF_TOKEN contains characters that no token has",
        "copy it again, without quotation marks, spaces and line breaks; "
        "if it names a secret, create that secret",
    )
    UNREACHABLE = (
        "the hub does not answer",
        "check that this machine can reach it, or point HF_ENDPOINT at a mirror",
    )
    RATE_LIMITED = (
        "the hub's rate limit is reached",
        "try again later, or set HF_TOKEN, which raises the limit",
    )
    HUB_FAILS = ("the hub has a server error", "try again later")
    NO_FILES = (
        "the repository has no files that can be loaded",
        "set {setting} to one with safetensors, or LOAD_FORMAT to the format that it has",
    )
    BROKEN_FILES = (
        "its weights can't be loaded",
        "copy the whole model again, set {setting} to another one, or LOAD_FORMAT to the format "
        "of its weights",
    )
    NOT_A_TOKENIZER = (
        "there are no files of a tokenizer",
        "copy the whole model again, or set {setting} to a model with the same tokenizer",
    )
    NOT_AN_ADAPTER = (
        "there is no adapter_config.json, so this is not an adapter",
        "set {setting} to the directory or repository of an adapter",
    )
    LFS_POINTER = (
        "{detail} is a pointer of Git LFS, not the file itself",
        "run `git lfs pull` where it was cloned, or set {setting} to a complete copy",
    )
    ADAPTER = (
        "this is an adapter of {detail}, not a model",
        "set {setting}={detail} and {prefix}ENABLE_LORA=1, and name this adapter in "
        "{prefix}LORA_MODULES=<name>=<path>, or copy it to adapters/<name> on the volume",
    )
    PIPELINE = (
        "this is a pipeline of diffusers (model_index.json), and vLLM serves models that generate "
        "text, embed or rank",
        "set {setting} to such a model",
    )
    CACHE_FOLDER = (
        "this is the folder of a repository in a cache of the hub, and not the model",
        "set {setting}={detail}, which is looked for in HF_HOME and BASE_PATH, or name a directory "
        "in its snapshots",
    )
    WRONG_CHECKSUM = (
        "the hub's data does not match its listing",
        "try again; if it happens again, set {revision} to another commit",
    )
    NO_SPACE = (
        "there is not enough space to download it",
        "use a larger volume or container disk, or set BASE_PATH to a larger one",
    )
    FULL_DISK = (
        "this machine's disk is full",
        "use a larger container disk, or a network volume, which all workers share",
    )
    UNWRITABLE = (
        "it can't be stored",
        "attach a volume that can be written to, or set BASE_PATH to another directory",
    )


# Reasons that may not apply to another worker, or to this one a minute later.
TEMPORARY_REASONS = frozenset(
    {
        Reason.UNREACHABLE,
        Reason.RATE_LIMITED,
        Reason.HUB_FAILS,
        Reason.WRONG_CHECKSUM,
        Reason.FULL_DISK,
    }
)
# Reasons that concern access to the repository.
ACCESS_REASONS = frozenset(
    {Reason.TOKEN_MISSING, Reason.NO_ACCESS, Reason.BAD_TOKEN, Reason.ODD_TOKEN}
)


class WrongChecksumError(OSError):
    """The content of a file differs from the size or checksum that the hub announced."""


class ModelUnavailable(StartFailed):
    """A model is neither on the disk nor downloadable.

    ``problem`` names the model and the cause, ``remedy`` says how to solve the problem. ``detail``
    replaces {detail} of the reason; without one, the problem has it in brackets.
    """

    def __init__(self, artifact: Artifact, reason: Reason, detail: str = "") -> None:
        problem, remedy = reason.value
        setting = artifact.setting
        revision = setting.replace("_NAME", "_REVISION")
        if revision == setting:
            # Draft models and adapters have no separate setting for the revision.
            revision = f"the revision in {setting}"
        words = {
            "setting": setting,
            "revision": revision,
            "prefix": setting.removesuffix("MODEL_NAME") if setting.endswith("MODEL_NAME") else "",
            "detail": detail,
        }
        brackets = f" ({detail})" if detail and "{detail}" not in problem + remedy else ""
        super().__init__(f"{artifact}: {problem.format(**words)}{brackets}", remedy.format(**words))
        self.affects_all_workers = reason not in TEMPORARY_REASONS
        self.artifact, self.reason, self.detail = artifact, reason, detail
