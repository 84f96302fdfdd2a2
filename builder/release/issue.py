"""Issues that workflows open, through GitHub's command line tool ``gh``."""

import json
import subprocess


def open_once(title: str, body: str) -> str:
    """Open an issue unless one with this title is open; return its URL.

    Raises:
        subprocess.CalledProcessError: gh failed; it has said why.
    """
    listed = json.loads(_gh("issue", "list", "--state=open", "--limit=1000", "--json=title,url"))
    for issue in listed:
        if issue["title"] == title:
            return str(issue["url"])
    return _gh("issue", "create", f"--title={title}", f"--body={body}").strip()


def _gh(*words: str) -> str:
    return subprocess.run(("gh", *words), check=True, stdout=subprocess.PIPE, text=True).stdout
