"""A volume for the rows that ask for what lies there."""

from pathlib import Path

# What an operator may keep there, and a caller's file of 18 MB in which nothing is a prompt.
OWN = ("secret-of-operator/.env", ".cache/token", "models/my-model/config.json", "inbox/.env")
LISTS = "inbox/lists.json"


def lay_out(root: Path) -> None:
    """Write the volume's files."""
    for name in (*OWN, LISTS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        (root / name).write_text('{"prompt": "Hi", "response": "a"}\n')
    lists = '{"prompts": ["Hi"], "max_new_tokens": 1, "temperature": 0, "stop_sequences": ['
    (root / LISTS).write_text(lists + "[]," * 6_000_000 + "[]]}")
