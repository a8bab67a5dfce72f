"""What a broker may send in a SCRAM exchange."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import aiokafka.conn
import pytest

from connect.kafka.security.aiokafka_sasl import CheckedScram
from connect.kafka.security.connection_settings import connection_settings

PASSWORD = "pencil"
SALT = b"salt"


class Broker:
    """The broker's side (RFC 5802)."""

    def __init__(self, iterations: str = "4096", nonce: str | None = None, extra: str = "") -> None:
        self.iterations, self.nonce, self.extra = iterations, nonce, extra
        self.auth_message = ""

    def first(self, client_first: bytes) -> bytes:
        bare = client_first.decode().removeprefix("n,,")
        own = bare.partition("r=")[2]
        nonce = f"{own}3rfcNHYJY1ZVvWVs7j" if self.nonce is None else self.nonce.replace("OWN", own)
        first = f"{self.extra}r={nonce},s={base64.b64encode(SALT).decode()},i={self.iterations}"
        self.auth_message = f"{bare},{first},c=biws,r={nonce}"
        return first.encode()

    def last(self) -> bytes:
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), SALT, int(self.iterations))
        key = hmac.digest(salted, b"Server Key", "sha256")
        return b"v=" + base64.b64encode(hmac.digest(key, self.auth_message.encode(), "sha256"))


def client() -> CheckedScram:
    props = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'x.ScramLoginModule required username="me" password="{PASSWORD}";',
    }
    settings = connection_settings(props, client_id="x", where="cluster us")
    made = aiokafka.conn.AIOKafkaConnection("a", 1, **settings.create_conn_arguments()).authenticator_scram()
    assert isinstance(made, CheckedScram)
    return made


@pytest.mark.parametrize("iterations", ["4096", "8192", "1000000"])
async def test_an_exchange_with_a_broker_that_knows_the_password(iterations: str) -> None:
    scram, broker = client(), Broker(iterations)
    first, _ = await scram.step(None)
    final, _ = await scram.step(broker.first(first))
    assert final.startswith(b"c=biws,r=")
    assert await scram.step(broker.last()) is None


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        *((Broker(count), "not between 4096 and 1000000") for count in ("1", "4095", "1000001", "2147483647")),
        *((Broker(count), "not between 4096 and 1000000") for count in ("-4096", "9" * 5000, "many")),
        *((Broker(nonce=nonce), "did not extend the nonce") for nonce in ("OWN", "mine", "")),
        (Broker(extra="m=x,"), "extension that this client does not know"),
        (Broker(extra="e=other-error,"), "ended the exchange"),
    ],
)
async def test_a_broker_that_lies_gets_no_proof(broker: Broker, said: str) -> None:
    scram = client()
    first, _ = await scram.step(None)
    with pytest.raises(ValueError, match=said):
        await scram.step(broker.first(first))


@pytest.mark.parametrize(
    ("last", "said"),
    [
        *((b"v=" + proof, "did not prove") for proof in (base64.b64encode(bytes(32)), b"", b"!!")),
        (b"e=invalid-proof", "ended the exchange"),
        (b"", "incomplete"),
    ],
)
async def test_a_broker_that_does_not_know_the_password_is_not_believed(last: bytes, said: str) -> None:
    scram = client()
    first, _ = await scram.step(None)
    await scram.step(Broker().first(first))
    with pytest.raises(ValueError, match=said):
        await scram.step(last)


async def test_the_loop_turns_while_a_password_is_stretched() -> None:
    scram, broker = client(), Broker("1000000")
    first, _ = await scram.step(None)
    stretching = asyncio.ensure_future(scram.step(broker.first(first)))
    turns = 0
    while not stretching.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    await stretching
