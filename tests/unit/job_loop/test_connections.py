"""Connections for posts, to a server that sends prepared bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.processes.background import HUNG_S, poll_until

from job_loop import connections
from job_loop.connections import ConnectionPool, PostRequest

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CLOSES = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
HANG_UP = b""


@dataclass
class Server:
    """Sends one prepared response per request, in this order, and stores the requests."""

    url: str
    responses: list[Sequence[bytes]]
    heads: list[list[str]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    is_idle: bool = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                self.heads.append(head.split("\r\n"))
                size = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
                self.contents.append(await reader.readexactly(size))
                self.is_idle = False
                for part in self.responses.pop(0):
                    if part == HANG_UP:
                        return
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                self.is_idle = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.is_idle = True

    async def close_connections(self) -> None:
        for writer in self.writers:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def run_server(*responses: Sequence[bytes]) -> AsyncIterator[Server]:
    server = Server("", list(responses))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/done/$ID?gpu=A 40"
    async with listener:
        yield server
        for writer in server.writers:
            writer.close()


async def post(pool: ConnectionPool, server: Server, content: bytes = b"{}") -> int:
    request = PostRequest(server.url, {"X-Request-ID": "$ID"})
    connection = await pool.acquire(request.origin, HUNG_S)
    try:
        return await connection.send(request.encode("job-1", content), HUNG_S)
    finally:
        pool.release(request.origin, connection)


async def test_a_connection_is_used_again() -> None:
    async with run_server([OK], [OK[:20], OK[20:]], [CONTINUE, OK]) as server:
        pool = ConnectionPool()
        assert [await post(pool, server, content) for content in (b"1", b"", b"333")] == [200] * 3
        assert (len(server.writers), server.contents) == (1, [b"1", b"", b"333"])
        request_line, *headers = server.heads[0]
        assert request_line == "POST /done/job-1?gpu=A+40 HTTP/1.1"
        assert "X-Request-ID: job-1" in headers
        pool.close_idle()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
# Bytes after a complete response: another one or a part of it, or no HTTP.
REMAINDERS = (b"H", b"HTTP/1.1 400 No\r\nContent-Le", CONTINUE, OK, OK + OK[:30], b"{}", b"\0")


@pytest.mark.parametrize(
    "unusable",
    [
        [CLOSES],
        [OK, HANG_UP],
        [OK[:-1], HANG_UP],
        *(
            [response + remainder]
            for response in (OK, CHUNKED, EMPTY, CONTINUE + OK)
            for remainder in (REMAINDERS if response == OK else REMAINDERS[-2:])
        ),
        *([OK, remainder] for remainder in REMAINDERS),
    ],
)
async def test_a_connection_that_was_closed_or_has_more_bytes_is_not_used_again(
    unusable: Sequence[bytes],
) -> None:
    async with run_server(unusable, [OK]) as server:
        pool = ConnectionPool()
        # The status is enough, even if the rest of the response is missing.
        assert await post(pool, server) in (200, 204)
        await poll_until(lambda: server.is_idle)
        # A slow machine may wake this up before the loop has read, but not each time.
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert await post(pool, server) == 200
        assert len(server.writers) == 2
        pool.close_idle()


@pytest.mark.parametrize(
    "response", [[HANG_UP], [b"HTTP/1.1 2", HANG_UP], [b"SSH-2.0\r\n\r\n"], [UPGRADE, b"\x81\x00"]]
)
async def test_a_response_without_a_status_is_an_error(response: Sequence[bytes]) -> None:
    async with run_server(response, [OK]) as server:
        pool = ConnectionPool()
        with pytest.raises(OSError, match=r"closed|HTTP"):
            await post(pool, server)
        assert await post(pool, server) == 200
        pool.close_idle()


async def test_a_post_has_a_time_limit() -> None:
    async with run_server([]) as server:
        pool = ConnectionPool()
        request = PostRequest(server.url, {})
        connection = await pool.acquire(request.origin, HUNG_S)
        with pytest.raises(TimeoutError):
            await connection.send(request.encode("job", b""), 0.01)
        assert not connection.is_reusable


async def test_a_cancelled_post_closes_its_connection() -> None:
    async with run_server([]) as server:
        pool = ConnectionPool()
        task = asyncio.create_task(post(pool, server))
        await poll_until(lambda: bool(server.heads))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await poll_until(server.writers[0].is_closing)


async def test_connections_that_were_not_used_for_long_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_server([OK], [OK], [OK]) as server:
        pool = ConnectionPool()
        await asyncio.gather(post(pool, server), post(pool, server))
        monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.0)
        assert await post(pool, server) == 200
        assert len(server.writers) == 3
        await poll_until(lambda: all(writer.is_closing() for writer in server.writers[:2]))
        pool.close_idle()


@pytest.mark.parametrize("job_id", ["a\r\nHost: other", "a b/../c?d", "ü"])
async def test_a_jobs_id_changes_nothing_but_its_own_part_of_a_request(job_id: str) -> None:
    request = PostRequest("http://127.0.0.1/done/$ID?x=1", {"X-Request-ID": "$ID"})
    head = request.encode(job_id, b"").decode()
    assert head.count("\r\n") == 5
    path = head.split(" ")[1]
    assert (path.count("/"), path.count("?")) == (2, 1)


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Return the files of a key and of its certificate, which is valid for one name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = directory / "key.pem", directory / "certificate.pem"
    files[0].write_bytes(key.private_bytes(pem, *private))
    files[1].write_bytes(certificate.public_bytes(pem))
    return files


@pytest.mark.parametrize("name", ["localhost", "other.example"])
async def test_certificates_are_verified(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = make_certificate(tmp_path, name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    # Python's ssl module reads this variable.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    server = Server("", [[OK], [OK]])
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.url = f"https://localhost:{listener.sockets[0].getsockname()[1]}/done?"
    pool = ConnectionPool()
    async with listener:
        if name == "localhost":
            assert [await post(pool, server), await post(pool, server)] == [200, 200]
            assert len(server.writers) == 1
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                await post(pool, server)
        pool.close_idle()
