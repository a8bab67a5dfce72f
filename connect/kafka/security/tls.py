"""TLS settings as text that can travel, and the SSL context made of them."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Self

from connect.core.errors import SecurityError

VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True)
class TlsSettings:
    """What a TLS connection needs, all of it as text.

    Args:
        trusted_pem: Certificates to trust; None means those of the machine.
        certificate_chain_pem: Our own certificate and what stands behind it, if the broker wants one.
        private_key_pem: Its key, PKCS#8, not encrypted.
        check_hostname: Whether the broker's certificate must name the host that was dialled.
        versions: Allowed protocol versions in Java's words.
        ciphers: Allowed suites up to TLS 1.2 in OpenSSL's words; none means its own choice.
    """

    trusted_pem: str | None = field(default=None, repr=False)
    certificate_chain_pem: str | None = field(default=None, repr=False)
    private_key_pem: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """A JSON-able form; it holds the private key."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**{**wire, "versions": tuple(wire["versions"]), "ciphers": tuple(wire["ciphers"])})

    def certificate_ends(self) -> datetime:
        """Until when our own certificate, which must be there, is valid."""
        # A quarter of a second to load, which is only needed to explain a failure.
        from cryptography import x509

        assert self.certificate_chain_pem is not None
        return x509.load_pem_x509_certificate(self.certificate_chain_pem.encode()).not_valid_after_utc

    def server_context(self, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        """The context of a server that shows our certificate, and wants one of its clients as ``client_auth`` says.

        Raises:
            SecurityError: There is no certificate of ours, or OpenSSL refuses one.
        """
        if self.certificate_chain_pem is None or self.private_key_pem is None:
            raise SecurityError("a TLS server needs a key and a certificate; set ssl.keystore.location or its PEM keys")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _configure(context, self, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = client_auth
        return context

    def ssl_context(self) -> ssl.SSLContext:
        """The context for these settings, made once per process.

        Raises:
            SecurityError: OpenSSL refuses a certificate or key.
        """
        return _context(self)


@lru_cache(maxsize=64)
def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_hostname
    _configure(context, tls, ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, tls: TlsSettings, purpose: ssl.Purpose) -> None:
    allowed = [VERSIONS[version] for version in tls.versions]
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)
    if tls.ciphers:
        try:
            context.set_ciphers(":".join(tls.ciphers))
        except ssl.SSLError:
            raise SecurityError("OpenSSL on this machine allows none of the suites in ssl.cipher.suites") from None
    # Java trusts whatever stands in the trust store, intermediates and single broker certificates included.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        if tls.trusted_pem is None:
            context.load_default_certs(purpose)
        else:
            context.load_verify_locations(cadata=tls.trusted_pem)
        if tls.certificate_chain_pem is not None and tls.private_key_pem is not None:
            with _as_file(tls.private_key_pem + tls.certificate_chain_pem) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise SecurityError(f"the TLS certificates cannot be used: {error.reason or 'not readable'}") from None


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path under which OpenSSL can read ``text``: in memory where the system can, so no key reaches a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
