"""Paths as hostile callers write them, where ``{}`` is the volume; links that lead out of it."""

from pathlib import Path

from hypothesis import strategies as st

# Files that exist, or might exist.
KNOWN = (
    *("inbox/a", "uploads/a", "out/a", "inbox/deep/config.json", "out/hf/token", "out/hf"),
    *("models/my-model/config.json", "adapters/my-model/config.json", ".cache/token", ".env"),
    *("worker/files/token", "secret/.env", "../secret", "inbox/../.env", "inbox/.env"),
    *("out/.cache/token", "out/models2/a"),
    *("out/my-model/config.json", "out/around/secret", "inbox/deep/around/passwd"),
    *("INBOX/a", "inbox/A", "Out/a", "inbox/.a", "out/.hidden/a", "inbox/./a", "inbox//a"),
)
PARTS = st.one_of(
    st.sampled_from(
        [
            *("", ".", "..", "...", "/", "//", "\\", "~", "*", "s3:", "s3://bucket", "%2e%2e"),
            *("inbox", "uploads", "out", "OUT", "Inbox", "ou\uff54", "out\u0301", "a", "deep"),
            *("worker", "files", "adapters", "huggingface-cache", "compile-cache", "models"),
            *("my-model", ".cache", ".env", "token", "config.json", "hf", "around", "models2"),
            *("..%2f", "\u2025", "\u2215", " ", "\t", "\u202e", "a" * 255),
        ]
    ),
    st.text(max_size=8),
)
STARTS = st.sampled_from(["", "/", "{}/", "s3://bucket/", "s3://bucket//", "inbox/", "out/", "./"])
PATHS = st.one_of(
    st.tuples(STARTS, st.sampled_from(KNOWN)).map("".join),
    st.builds(
        lambda start, parts, slash: start + slash.join(parts),
        STARTS,
        st.lists(PARTS, max_size=6),
        st.sampled_from(["/", "/", "//", "/./", "/x/../"]),
    ),
)


def make_links(root: Path) -> None:
    """Create links in the callers' directories that lead out of them, unless they exist."""
    for name, target in (
        ("out/around", root.parent),
        ("out/models2", root / "models"),
        ("inbox/deep/around", Path("/etc")),
        ("uploads/hf", root / ".cache"),
    ):
        if not (root / name).is_symlink():
            (root / name).symlink_to(target)
