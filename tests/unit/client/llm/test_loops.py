"""Work on a loop of its own, and what Ctrl-C does to it."""

import asyncio
import signal
import threading

import pytest

from llm_worker_client.llm.loops import waited


async def work() -> str:
    await asyncio.sleep(0)
    return "done"


async def broken() -> None:
    raise ValueError("no")


def test_the_result_is_returned_and_an_error_raised() -> None:
    assert waited(work()) == "done"
    with pytest.raises(ValueError, match="no"):
        waited(broken())


async def test_it_may_be_called_where_a_loop_runs_already() -> None:
    assert waited(work()) == "done"


def test_ctrl_c_lets_the_work_tidy_up() -> None:
    main, tidied = threading.main_thread().ident, []
    assert main

    async def interrupted() -> None:
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        waited(interrupted())
    assert tidied == [True]
