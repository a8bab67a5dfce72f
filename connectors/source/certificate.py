"""The certificate of a control link that leaves this machine: made at start, known to the slices by its own bytes."""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "heliograph control link")])
#: A slice accepts this very certificate and no other, so its dates protect nothing; executors' clocks may be wrong.
_BEGIN: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END: Final = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def server_tls() -> tuple[ssl.SSLContext, str]:
    """A context to listen with, and the PEM of its fresh certificate, which is public. The key leaves no file behind.

    TLS 1.3 only: both ends are ours.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        # With these it is its own authority under the strictest reading too (Python 3.13's default).
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_signing_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, pem + secret)
    return context, pem.decode()


def _signing_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Through a file that only we can read and that is gone at once: the module takes nothing else."""
    handle, name = tempfile.mkstemp(prefix="heliograph-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
