"""A network for tests: names that resolve as a table says, and a server that must not be asked."""

import socket
from collections.abc import Mapping

from aiohttp.abc import AbstractResolver, ResolveResult


class Names(AbstractResolver):
    """Looks names up in a table; a name with several answers gives the next one every time."""

    def __init__(self, table: Mapping[str, list[list[str]]]) -> None:
        self.table = {name: list(answers) for name, answers in table.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.table.get(host.lower().removesuffix("."))
        if not answers:
            raise OSError("no such name")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in answer
        ]

    async def close(self) -> None:
        """Do nothing."""


class Canary:
    """A server on the loopback interface that counts what reaches it."""

    def __init__(self, port: int, hits: list[str]) -> None:
        self.port = port
        self.hits = hits
