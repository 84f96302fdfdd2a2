"""HTTP requests as jobs of the worker, and what jobs yield as HTTP responses.

A queue endpoint's gateway passes bodies of posts and little else. A job can hold all of a request:
its method, its path with the query string, its body. Nothing here does more than convert, but that
a large form is kept on the disk.
"""

from llm_worker_client.mapping.errors import Dialect, Refusal, refusal_of
from llm_worker_client.mapping.requests import Call, Kind, PassedOn, Request, dialect_of, read

__all__ = [
    "Call",
    "Dialect",
    "Kind",
    "PassedOn",
    "Refusal",
    "Request",
    "dialect_of",
    "read",
    "refusal_of",
]
