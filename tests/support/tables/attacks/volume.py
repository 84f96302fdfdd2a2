"""A volume for requests that read its files."""

from pathlib import Path

# Files of the operator, and a caller's file of 18 MB that contains no prompts.
OPERATOR_FILES = (
    "secret-of-operator/.env",
    ".cache/token",
    "models/my-model/config.json",
    "inbox/.env",
)
LISTS_FILE = "inbox/lists.json"


def write_volume(root: Path) -> None:
    """Write the volume's files."""
    for name in (*OPERATOR_FILES, LISTS_FILE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for name in OPERATOR_FILES:
        (root / name).write_text('{"prompt": "Hi", "response": "a"}\n')
    lists = '{"prompts": ["Hi"], "max_new_tokens": 1, "temperature": 0, "stop_sequences": ['
    (root / LISTS_FILE).write_text(lists + "[]," * 6_000_000 + "[]]}")
