"""A request to vLLM's own server, with the gateway's keys or with ours."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote

from pydantic import TypeAdapter, ValidationError, model_validator

from worker.job.base import Job

_VERSION = re.compile(r"^(/v1)+(?=/)")
_server_boolean = TypeAdapter(bool)


class OpenAIJob(Job):
    """A route, a method and a body; vLLM checks the body."""

    marks: ClassVar[frozenset[str]] = frozenset({"openai_route", "route"})
    # The names that the platform's gateway has for them.
    other_names: ClassVar[Mapping[str, str]] = {"route": "openai_route", "body": "openai_input"}

    # Whether the answer has to fit one yield.
    one_yield: ClassVar[bool] = True

    route: str
    # None where the sender does not know it, as the gateway, or left it out: it is the route's.
    method: str | None = None
    body: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Rename the gateway's keys."""
        renamed = dict(values)
        for name, other in cls.other_names.items():
            if other in renamed:
                renamed[name] = renamed.pop(other)
        return renamed

    @property
    def path(self) -> str:
        """The route without ``/v1``, which callers may leave out: ``/chat/completions``."""
        path = "/" + unquote(self.route.split("?")[0]).strip("/")
        # Twice where a client's base address has it, too.
        return _VERSION.sub("", path)

    @property
    def query(self) -> dict[str, str]:
        """The route's query string, the last value of each name."""
        return dict(parse_qsl(self.route.partition("?")[2], keep_blank_values=True))

    @property
    def versioned(self) -> bool:
        """Whether the route was written with ``/v1``, where OpenAI's API is."""
        return self.route.lstrip("/").startswith("v1/")

    @property
    def stream(self) -> bool:
        """Whether vLLM's server will read the body's ``stream`` as true: it knows many words."""
        if self.body is None:
            return False
        try:
            return _server_boolean.validate_python(self.body.get("stream"))
        except ValidationError:
            return False


class BatchLine(OpenAIJob):
    """A request in a batch: its answer goes into a file."""

    one_yield: ClassVar[bool] = False
