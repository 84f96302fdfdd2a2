"""Jobs with a request to a route, in the keys of the platform's gateway or the worker's own."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import TypeAdapter, ValidationError, model_validator

from worker.job.base import Job, UserName
from worker.validation import Metadata

T = TypeVar("T")

_VERSION_PREFIX = re.compile(r"^(/v1)+(?=/)")
_boolean_adapter = TypeAdapter(bool)
_user_adapter = TypeAdapter(UserName | None)
_labels_adapter = TypeAdapter(Metadata)


class OpenAIJob(Job):
    """A request with a route, a method and a body. The route validates the body later."""

    marker_keys: ClassVar[frozenset[str]] = frozenset({"openai_route", "route"})
    # The gateway's names of the fields ``route`` and ``body``.
    aliases: ClassVar[Mapping[str, str]] = {"route": "openai_route", "body": "openai_input"}

    # Whether an answer that is not a stream must fit a result of the platform.
    must_fit_result: ClassVar[bool] = True

    route: str
    # None if the sender omits the method, as the gateway does: then derived from the body.
    method: str | None = None
    body: dict[str, Any] | None = None
    # Whether each event of a stream has a chunk or a token; None selects STREAM_EVENTS.
    stream_events: Literal["chunk", "token"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_gateway_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Replace the gateway's keys by the worker's, and move ``receipt`` out of the body.

        Clients of the gateway can only add keys to the body.
        """
        renamed = dict(values)
        for name, alias in cls.aliases.items():
            if alias in renamed:
                renamed[name] = renamed.pop(alias)
        body = renamed.get("body")
        if isinstance(body, dict) and "receipt" in body:
            renamed["body"] = {key: value for key, value in body.items() if key != "receipt"}
            renamed.setdefault("receipt", body["receipt"])
        return renamed

    @property
    def receipt_names(self) -> tuple[str | None, Mapping[str, str]]:
        """The caller's name for its user, and its labels, from the body or next to it.

        In the body, they belong to other APIs, so that invalid ones are ignored. A longer name is
        not shortened: with the beginnings of their names, two users would be the same.
        """
        body = self.body or {}
        pairs = body.get("metadata")
        labels = dict(pairs) if isinstance(pairs, dict) else {}
        # Anthropic's API has the user among the metadata.
        user = _valid_or(None, _user_adapter, body.get("user", labels.pop("user_id", None)))
        labels = _valid_or({}, _labels_adapter, labels)
        return self.user or user, {**labels, **(self.metadata or {})}

    @property
    def path(self) -> str:
        """The route without query and ``/v1``, which is optional, such as ``/chat/completions``."""
        path = "/" + unquote(self.route.split("?")[0]).strip("/")
        # ``/v1`` is duplicated if a client's base URL contains it, too.
        return _VERSION_PREFIX.sub("", path)

    @property
    def query_params(self) -> dict[str, str]:
        """The route's query parameters; if a name is repeated, its last value."""
        return dict(parse_qsl(self.route.partition("?")[2], keep_blank_values=True))

    @property
    def has_version_prefix(self) -> bool:
        return self.route.lstrip("/").startswith("v1/")

    @property
    def stream(self) -> bool:
        """Whether vLLM's server will read ``stream`` as true; it accepts many spellings."""
        return _valid_or(False, _boolean_adapter, (self.body or {}).get("stream"))


def _valid_or(default: T, adapter: TypeAdapter[T], value: Any) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return default


class BatchLine(OpenAIJob):
    """A request of a batch, whose answer is written to a file."""

    must_fit_result: ClassVar[bool] = False
