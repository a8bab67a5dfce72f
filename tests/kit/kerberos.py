"""A real KDC of MIT Kerberos on this machine, from Debian's packages ``krb5-kdc`` and ``krb5-admin-server``."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from connect.embedded import cluster_config
from tests.kit.processes import wait_until

REALM: Final = "EXAMPLE.COM"
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
_DEADLINE_S: Final = 120.0


def is_possible() -> bool:
    programs = ("krb5kdc", "kdb5_util", "kadmin.local")
    return all(shutil.which(each, path=_PATH) for each in programs) and find_spec("gssapi") is not None


@dataclass
class Kdc:
    """A KDC with its database in ``folder``; a context."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    def __enter__(self) -> Self:
        (port,) = cluster_config.choose(1)
        address = f"{cluster_config.HOST}:{port}"
        program = shutil.which("krb5kdc", path=_PATH)
        assert program is not None
        plugins = next(Path(program).resolve().parents[1].glob("lib/*/krb5/plugins/kdb"), None)
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = {address}\n }}\n"
        )
        files = {"database_name": "principal", "key_stash_file": "stash", "acl_file": "acl"}
        own = "".join(f"  {key} = {self.folder / name}\n" for key, name in files.items())
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n"
            f"[realms]\n {REALM} = {{\n{own} }}\n" + (f"[dbmodules]\n db_module_dir = {plugins}\n" if plugins else "")
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        self._process = subprocess.Popen([program, "-n"], env=self._environment())
        try:
            wait_until(lambda: self._answers(port), _DEADLINE_S, "the KDC serves")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_DEADLINE_S)

    def _answers(self, port: int) -> bool:
        assert self._process.poll() is None, "the KDC has ended"
        with contextlib.suppress(OSError), socket.create_connection((cluster_config.HOST, port), 1):
            return True
        return False

    def keytab(self, principal: str) -> Path:
        file = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-q", f"ktadd -k {file} {principal}")
        return file

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=_PATH)
        assert found is not None
        command = [found, *arguments]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True, timeout=_DEADLINE_S)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}
