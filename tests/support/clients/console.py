"""The console's page as a server sends it: its parts, and checks that all three servers share."""

import base64
import hashlib
import re
from collections.abc import Mapping


def element(page: str, name: str) -> str:
    """Return the content of the page's only element of this name."""
    (content,) = re.findall(rf"<{name}[^>]*>(.*?)</{name}>", page, re.DOTALL)
    return str(content)


def read_values(page: str) -> dict[str, str]:
    """Return the values that the server has filled in, by name."""
    return dict(re.findall(r'<meta name="(server|endpoint|key)" content="(.*?)">', page))


def check_headers(headers: Mapping[str, str], page: str) -> None:
    """Check that a browser runs the page's own script and nothing else, and stores nothing."""
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for name in ("script", "style"):
        digest = hashlib.sha256(element(page, name).encode()).digest()
        assert policy.pop(f"{name}-src") == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert (policy.pop("connect-src"), policy.pop("img-src")) == ("'self'", "data: blob:")
    assert policy == dict.fromkeys(
        ("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'"
    )
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
