"""The console: one page for a browser, which the worker, the emulator and the proxy serve at ``/``.

The page is a file without a build. It calls the routes of the server that has sent it.
"""

import base64
import hashlib
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PAGE_FILE = Path(__file__).with_name("index.html")
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class ConsolePage:
    """The page for one server, and the headers of its response."""

    body: bytes
    headers: dict[str, str]


def make_page(
    server: Literal["emulator", "worker", "proxy"], *, needs_key: bool, endpoint_path: str = ""
) -> ConsolePage:
    """Return the page, with everything that it has to know about its server filled in.

    If ``needs_key``, the page waits for a key before it calls. ``endpoint_path`` is the endpoint's
    path in the platform's API, such as "/v2/local", if there is one.
    """
    text = PAGE_FILE.read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash_element(text, "script"),
        "style-src": _hash_element(text, "style"),
        "connect-src": "'self'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    values = {"SERVER": server, "ENDPOINT": endpoint_path, "KEY": "needed" if needs_key else ""}
    for name, value in values.items():
        text = text.replace(f"%{name}%", html.escape(value))
    security = "; ".join(f"{directive} {source}" for directive, source in policy.items())
    return ConsolePage(text.encode(), {**_HEADERS, "Content-Security-Policy": security})


def _hash_element(text: str, name: str) -> str:
    """Return the source expression that allows the content of the page's only such element."""
    (content,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
