"""What encryption alone costs a copier: each byte is decrypted once and encrypted once."""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bench.rows import Ciphers
from tests.kit.certificates import make_party

#: TLS 1.3's first choice between Java and Python, TLS_AES_256_GCM_SHA384, and its largest record.
_KEY_BITS: Final = 256
_RECORD_BYTES: Final = 16 * 1024
_TOTAL_BYTES: Final = 2_000_000_000


def measure_ciphers(load: str, number: int, total_bytes: int = _TOTAL_BYTES) -> Ciphers:
    """CPU seconds of the calling thread per GB."""
    records = max(1, total_bytes // _RECORD_BYTES)
    per_gb = 1e9 / (records * _RECORD_BYTES)
    return Ciphers(
        load=load, round=number, cpu_s_per_gb=_cipher_s(records) * per_gb, tls_cpu_s_per_gb=_tls_s(records) * per_gb
    )


def _cipher_s(records: int) -> float:
    cipher, nonce = AESGCM(AESGCM.generate_key(_KEY_BITS)), bytes(12)
    sealed = cipher.encrypt(nonce, os.urandom(_RECORD_BYTES), None)
    began_s = time.thread_time()
    for _ in range(records):
        cipher.encrypt(nonce, cipher.decrypt(nonce, sealed, None), None)
    return time.thread_time() - began_s


def _tls_s(records: int) -> float:
    client, server = _connected()
    record, taken = os.urandom(_RECORD_BYTES), bytearray(_RECORD_BYTES)
    began_s = time.thread_time()
    for _ in range(records):
        client.write(record)
        server.read(_RECORD_BYTES, taken)
    return time.thread_time() - began_s


def _connected() -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a TLS connection without a socket."""
    party = make_party("localhost", None)
    accepting, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "party.pem"
        file.write_text(party.key_pem() + party.pem)
        accepting.load_cert_chain(file)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asking.wrap_bio(down, up), accepting.wrap_bio(up, down, server_side=True)
    ends, done = (client, server), set[ssl.SSLObject]()
    while len(done) < len(ends):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    return client, server
