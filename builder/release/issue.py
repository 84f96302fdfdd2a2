"""Issues that workflows open with GitHub's command line tool ``gh``."""

import json
import subprocess


def open_issue(title: str, body: str) -> str:
    """Open an issue unless an issue with this title is open; return its URL.

    Raises:
        subprocess.CalledProcessError: If gh fails; gh has printed the reason.
    """
    open_issues = json.loads(
        _gh("issue", "list", "--state=open", "--limit=1000", "--json=title,url")
    )
    for issue in open_issues:
        if issue["title"] == title:
            return str(issue["url"])
    return _gh("issue", "create", f"--title={title}", f"--body={body}").strip()


def _gh(*arguments: str) -> str:
    return subprocess.run(("gh", *arguments), check=True, stdout=subprocess.PIPE, text=True).stdout
