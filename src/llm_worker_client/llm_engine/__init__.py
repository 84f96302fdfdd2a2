"""LLM Engine's client API, for a deployed endpoint. Its users only change the import.

``resources`` has the classes whose calls the endpoint's worker answers: ``Completion``,
``FineTune`` and ``File``. ``model`` has ``Model``, which also creates and deletes endpoints of the
account. They send their requests through ``connection``, to the endpoint that ``configure`` has
set. Requests and responses are ``data_types``, failures are ``errors``; both have LLM Engine's
names.
"""

from llm_worker_client.llm_engine import data_types as data_types
from llm_worker_client.llm_engine import errors as errors
from llm_worker_client.llm_engine.connection import configure as configure
from llm_worker_client.llm_engine.data_types import *  # noqa: F403 - llmengine exports them, too
from llm_worker_client.llm_engine.model import Model as Model
from llm_worker_client.llm_engine.resources import Completion as Completion
from llm_worker_client.llm_engine.resources import File as File
from llm_worker_client.llm_engine.resources import FineTune as FineTune
