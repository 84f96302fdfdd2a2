"""What the worker replaces in vLLM's server: its messages, lines of its log, its threads."""

import asyncio
import inspect
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.base.io_processor import PoolingIOProcessor
from vllm.exceptions import VLLMValidationError
from vllm.renderers.base import BaseRenderer
from vllm.renderers.hf import HfRenderer

from worker.engine.locations import find
from worker.engine.options import Options
from worker.engine.requests import refusals
from worker.engine.server import Server
from worker.engine.translation import translate
from worker.media import Limits, Media
from worker.media.fetcher import Fetcher

CLIENT: Any = SimpleNamespace(model_config=None, errored=False)


@pytest.fixture(scope="module")
def built() -> Server:
    """The server of a model that generates text."""
    arguments = Options().parse({"MODEL": "org/name"}).vllm
    return Server(CLIENT, arguments, ("generate",), Media(Limits(), Fetcher(), []))


# Its messages:


@pytest.mark.parametrize("body", [{}, {"prompt": ""}])
def test_an_empty_prompt_is_refused_without_offering_what_callers_may_not_send(
    body: dict[str, Any],
) -> None:
    with pytest.raises(VLLMValidationError) as refused:
        CompletionRequest(**body)
    error = translate(refused.value)
    assert error is not None
    assert (error.status, error.param) == (400, "prompt")
    assert error.message == (
        "prompt: a text that is not empty, a list of token ids, or a list of either"
    )


# Its log:


@pytest.mark.parametrize(
    ("error", "defect"),
    [
        (KeyError("x"), True),
        (asyncio.CancelledError(), True),
        (VLLMValidationError("x"), False),
        (ValueError("x"), False),
    ],
    ids=repr,
)
def test_a_refusal_is_not_logged_with_a_traceback(error: BaseException, defect: bool) -> None:
    log = logging.getLogger("vllm.entrypoints.anthropic.api_router")
    with_traceback = (type(error), error, None)
    for arguments, exc_info in [((), with_traceback), (("a", error), None)]:
        record = log.makeRecord(log.name, logging.ERROR, "", 0, "x", arguments, exc_info)
        assert refusals.is_no_refusal(record) is defect


def test_other_lines_are_logged_but_not_those_that_quote_messages(built: Server) -> None:
    assert built is not None
    for name, arguments in [("vllm.a", ({"a": ValueError("b")},)), ("other", (ValueError("a"),))]:
        record = logging.LogRecord(name, logging.INFO, "", 0, "x", arguments, None)
        assert refusals.is_no_refusal(record)
    answer = find("ErrorResponse")(error={"message": "a", "type": "b", "code": 400})
    record = logging.LogRecord("vllm.a", logging.ERROR, "", 0, "with %s", (answer,), None)
    assert not refusals.is_no_refusal(record)
    assert not logging.getLogger("vllm.renderers.chat_utils").isEnabledFor(logging.WARNING)


# Its messages:


def test_vllms_function_for_messages_is_replaced_wherever_it_is_used(built: Server) -> None:
    """It needs minutes for a name of 40 KB. If this fails: worker/engine/locations.py."""
    assert built is not None
    assert find(refusals.NAME) is refusals.sanitized
    modules = [module for name, module in sys.modules.items() if name.startswith("vllm.")]
    used = [vars(module)[refusals.NAME] for module in modules if refusals.NAME in vars(module)]
    assert len(used) > 1
    assert set(used) == {refusals.sanitized}


# Its threads:


async def test_vllm_renders_and_tokenizes_in_an_executor_that_is_shared() -> None:
    """If this fails, long texts hold up others: worker/engine/server.py reserves a thread."""
    source = inspect.getsource(BaseRenderer.__init__)
    assert "self._executor = " in source
    assert "make_async(\n            self._tokenize_prompt, executor=self._executor" in source
    assert "executor=self._executor" in inspect.getsource(HfRenderer.__init__)
    assert "renderer._executor" in inspect.getsource(PoolingIOProcessor.__init__)
