"""Strict models of callers' input, and error messages that name the invalid fields."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from worker.errors import InvalidInput, RequestError

# Limits of an error message: the number of mistakes, and the characters of a key.
MAX_MISTAKES = 5
MAX_KEY_LENGTH = 64
# Limits of an object's metadata: the number of pairs, and the characters of a key and of a value.
MAX_METADATA_PAIRS = 16
MAX_METADATA_LENGTHS = (64, 512)

# Minimum similarity of a misspelled name to the correct one (``difflib``'s ratio, 0 to 1), and of
# a name with few characters, of which one may be wrong: fp7 for fp8.
MIN_SIMILARITY, MIN_SHORT_SIMILARITY = 0.75, 0.65
MAX_SHORT_LENGTH = 4
# Maximum length of a name for which similar ones are looked for: callers can send megabytes.
MAX_MISSPELLED_LENGTH = 256
# Maximum number of served models in a message.
MAX_LISTED_MODELS = 20

# Prefix of sampling parameters in messages; ``param`` names them without it, as vLLM does.
SAMPLING_PARAMS = "sampling_params"


def check_encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not a character") from None
    return text


# A string that can be encoded as UTF-8, and so written to a file.
Text = Annotated[str, AfterValidator(check_encodable)]


def _check_metadata(pairs: dict[str, str]) -> dict[str, str]:
    for key, value in pairs.items():
        if len(key) > MAX_METADATA_LENGTHS[0] or len(value) > MAX_METADATA_LENGTHS[1]:
            sizes = " and ".join(map(str, MAX_METADATA_LENGTHS))
            raise ValueError(f"keys and values have at most {sizes} characters")
    if len(pairs) > MAX_METADATA_PAIRS:
        raise ValueError(f"at most {MAX_METADATA_PAIRS} pairs")
    return pairs


# Metadata that callers attach to an object of the OpenAI API for their own use.
Metadata = Annotated[dict[Text, Text], AfterValidator(_check_metadata)]


class StrictModel(BaseModel):
    """A frozen model that rejects unknown keys and wrong types, and hides values in its errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def from_body(cls, values: Mapping[str, Any], container: str = "") -> Self:
        """Validate the body of a request, or an object in it; null values count as absent."""
        try:
            return cls.model_validate(drop_nulls(values))
        except ValidationError as error:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            raise to_invalid_input(error, known, container=container) from None


class QueryModel(BaseModel):
    """A frozen model of a query string; it ignores unknown keys."""

    # Not strict: all values of a query string are strings.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Validate a query string; an empty value counts as absent."""
        try:
            return cls.model_validate({name: value for name, value in query.items() if value})
        except ValidationError as error:
            raise to_invalid_input(error) from None


def to_invalid_input(
    error: ValidationError,
    known_keys: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
    container: str = "",
    key_hints: Mapping[str, str] | None = None,
) -> InvalidInput:
    """Translate pydantic's error; the message names the invalid fields, never their values.

    One of ``known_keys`` is suggested for a similar unknown one, and ``key_hints`` has advice on
    keys that are not allowed here. ``aliases`` are the caller's spellings of fields, and
    ``container`` is the name of the object with the fields, which precedes theirs.
    """
    fields, messages = [], []
    for mistake in error.errors(include_input=False, include_url=False)[:MAX_MISTAKES]:
        parts = [str(part) for part in (*filter(None, [container]), *mistake["loc"])] or ["input"]
        parts[0] = (aliases or {}).get(parts[0], parts[0])
        fields.append(".".join(parts))
        messages.append(
            unknown_key_message(fields[-1], known_keys, key_hints)
            if mistake["type"] == "extra_forbidden"
            else f"{fields[-1]}: {mistake['msg'].removeprefix('Value error, ')}"
        )
    return InvalidInput("; ".join(messages), param=fields[0].removeprefix(f"{SAMPLING_PARAMS}."))


@contextlib.contextmanager
def name_field_in_errors(name: str) -> Iterator[None]:
    """Name this field in the block's request errors: in ``param``, and in front of the message."""
    try:
        yield
    except RequestError as error:
        error.message, error.param = f"{name}: {error.message}", name
        raise


def unknown_key_message(
    key: str, known_keys: Iterable[str], key_hints: Mapping[str, str] | None = None
) -> str:
    """Return the message that refuses a key; it suggests a similar known key, if there is one.

    ``key_hints`` has advice on keys that callers write here although they are not allowed, by key.
    """
    if len(key) > MAX_KEY_LENGTH:
        return f"unknown key {key[:MAX_KEY_LENGTH]!r}..."
    hints = key_hints or {}
    # Names that share a long path would always be similar.
    parent, _, name = key.rpartition(".")
    paths = [known.rpartition(".") for known in (*known_keys, *hints)]
    siblings = {path[2]: "".join(path) for path in paths if path[0] == parent}
    near = next((siblings[known] for known in find_similar_names(name, siblings)), key)
    suggestion = f"did you mean {near!r}? " if near != key else ""
    remedy = f"{suggestion}{hints.get(near, '')}".strip()
    return f"unknown key {key!r}" + (f": {remedy}" if remedy else "")


def find_similar_names(
    name: str, known: Iterable[str], count: int = 1, min_similarity: float | None = None
) -> list[str]:
    """Return the known names that a misspelled name may mean, the most similar first."""
    if len(name) > MAX_MISSPELLED_LENGTH:
        return []
    if min_similarity is None:
        is_short = len(name) <= MAX_SHORT_LENGTH
        min_similarity = MIN_SHORT_SIMILARITY if is_short else MIN_SIMILARITY
    return difflib.get_close_matches(name, list(known), count, min_similarity)


def unknown_model_advice(name: str, served: Iterable[str]) -> str:
    """Return the end of a message about an unknown model: a similar one, or those served."""
    names = list(dict.fromkeys(served))
    if similar := find_similar_names(name, names):
        return f"did you mean {similar[0]!r}?"
    others = len(names) - MAX_LISTED_MODELS
    more = f" and {others} more" if others > 0 else ""
    return f"this worker serves {', '.join(names[:MAX_LISTED_MODELS])}{more}."


def drop_nulls(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items() if value is not None}
