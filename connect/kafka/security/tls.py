"""TLS settings as text that can be sent to other machines, and their SSL contexts."""

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
from connect.kafka.security import renewal

VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True)
class TlsSettings:
    """The settings of TLS connections, all as text.

    ``trusted_pem``: None means the certificates of the machine. The own certificate, with its issuers, and its key
    (PKCS#8, not encrypted) are for brokers that require one. ``versions`` has Java's names; ``ciphers``, the suites up
    to TLS 1.2, OpenSSL's names, and none means OpenSSL's default. ``files``: the name of the files with these contents,
    by which this process renews them; empty: none.
    """

    trusted_pem: str | None = field(default=None, repr=False)
    certificate_chain_pem: str | None = field(default=None, repr=False)
    private_key_pem: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    files: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return a JSON-compatible form of the newest contents; it includes the private key."""
        return asdict(renewal.newest(self))

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**{**wire, "versions": tuple(wire["versions"]), "ciphers": tuple(wire["ciphers"])})

    def certificate_ends(self) -> datetime:
        """Return the end of validity of the own certificate, which must be set."""
        # Takes a quarter of a second to load and is needed only to explain a failure.
        from cryptography import x509

        chain = renewal.newest(self).certificate_chain_pem
        assert chain is not None
        return x509.load_pem_x509_certificate(chain.encode()).not_valid_after_utc

    def server_context(self, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        """Return the context of a server with this certificate, renewed with its files; ``client_auth`` says whether
        clients need one. Raises SecurityError if the certificate or key is missing, or OpenSSL rejects it."""
        return renewal.context(self, lambda newest: newest._server_context(client_auth))

    def _server_context(self, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
        if self.certificate_chain_pem is None or self.private_key_pem is None:
            raise SecurityError("a TLS server needs a key and a certificate; set ssl.keystore.location or its PEM keys")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _configure(context, self, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = client_auth
        return context

    def ssl_context(self) -> ssl.SSLContext:
        """Return the client context for these settings, created once per process and renewed with their files. Raises
        SecurityError if OpenSSL rejects a certificate or key."""
        return _context(self)


@lru_cache(maxsize=64)
def _context(tls: TlsSettings) -> ssl.SSLContext:
    return renewal.context(tls, _client_context)


def _client_context(tls: TlsSettings) -> ssl.SSLContext:
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
    # Java trusts every certificate in the trust store, including intermediates and single broker certificates.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        if tls.trusted_pem is None:
            context.load_default_certs(purpose)
        else:
            context.load_verify_locations(cadata=tls.trusted_pem)
        if tls.certificate_chain_pem is not None and tls.private_key_pem is not None:
            with as_file(tls.private_key_pem + tls.certificate_chain_pem) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise SecurityError(f"the TLS certificates cannot be used: {error.reason or 'not readable'}") from None


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """Yield a path from which OpenSSL can read ``text``: in memory if the system supports it, so no key is on disk."""
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
