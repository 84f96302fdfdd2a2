"""A platform with a job loop behind it, all in the test's process."""

from collections.abc import AsyncIterator

import pytest
from support.job_loops import Platform, looping

from emulator import Emulator


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with Emulator() as emulator, looping(emulator) as running:
        yield running
