"""Pages that a test opens in chromium, and the problems that they report."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    WebError,
)
from support.processes import background


@dataclass
class Pages:
    """The pages of one test.

    A problem is an error or a warning on a page's console, which includes violations of the
    page's security policy; an error of its script; or a request to another host.
    """

    browser: Browser
    problems: list[str] = field(default_factory=list)
    _contexts: list[BrowserContext] = field(default_factory=list)
    _hosts: set[str] = field(default_factory=set)
    _expected: list[str] = field(default_factory=list)

    def open(self, url: str, **options: Any) -> Page:
        """Open a page in a context of its own.

        Args:
            url: The address of the page.
            options: Options of the context, such as ``color_scheme``.
        """
        self._hosts.add(urlsplit(url).netloc)
        context = self.browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **options}
        )
        self._contexts.append(context)
        context.set_default_timeout(background.HUNG_S * 1000)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        page = context.new_page()
        page.goto(url)
        return page

    def expect_problem(self, pattern: str) -> None:
        """Expect a problem that contains a match of a pattern, such as a status of 401."""
        self._expected.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        """The problems that the test does not expect."""
        return [text for text in self.problems if not _has_match(self._expected, [text])]

    @property
    def missing(self) -> list[str]:
        """The patterns of expected problems that no page has reported."""
        return [pattern for pattern in self._expected if not _has_match([pattern], self.problems)]

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _on_error(self, error: WebError) -> None:
        self.problems.append(f"script: {error.error}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc not in self._hosts:
            self.problems.append(f"foreign host: {request.url}")


def wait_until(page: Page, condition: Callable[[], object]) -> None:
    """Wait until a condition holds, while playwright's handlers of the page's events run.

    Raises:
        TimeoutError: The condition does not hold in time.
    """
    background.wait_until(condition, partial(page.wait_for_timeout, 10))


def _has_match(patterns: Iterable[str], texts: Sequence[str]) -> bool:
    return any(re.search(pattern, text) for pattern in patterns for text in texts)
