"""Hosts that ssh reaches, for tests: OpenSSH's client and server, and the network namespaces of a testbed.

No port is opened: the client's ProxyCommand starts ``sshd -i``, whose ForceCommand enters the host's namespaces.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest

from viakit.testbed import Testbed

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")

_SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PidFile none
LogLevel ERROR
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv XDG_CACHE_HOME={folder}/cache_{name}
ForceCommand {enter} sh -c "$SSH_ORIGINAL_COMMAND"
"""
_CLIENT = """
Host {name}
    ProxyCommand {sshd} -i -f {folder}/sshd_{name}
    IdentityFile {folder}/{key}
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking {strict}
    LogLevel ERROR
"""


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


@contextlib.contextmanager
def ssh_hosts(folder: Path, n: int = 2, mtu: int = 1500) -> Iterator[Testbed]:
    """Make *n* hosts h0, h1, ... that ssh reaches, and set VIAKIT_SSH.

    Each has a cache of its own: *folder*/cache_h0, ... Host ``refusing`` refuses the key. The host key of "newhost" is
    unknown.
    """
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("missing package openssh-server or openssh-client")
    for name in ("host_key", "user_key", "wrong_key"):
        _key(folder / name)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it when root starts it
    with needs.hosts(n, mtu=mtu) as testbed:
        client = ""
        places = [(host.name, host.pid, "user_key", "no") for host in testbed.hosts]
        places += [
            ("refusing", testbed.hosts[0].pid, "wrong_key", "no"),
            ("newhost", testbed.hosts[0].pid, "user_key", "yes"),
        ]
        for name, pid, key, strict in places:
            same = os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
            enter = f"nsenter -t {pid} {'' if same else '-U --preserve-credentials'} -n -u"
            (folder / f"sshd_{name}").write_text(_SERVER.format(folder=folder, name=name, enter=enter))
            client += _CLIENT.format(name=name, sshd=SSHD, folder=folder, key=key, strict=strict)
        (folder / "config").write_text(client)
        before = os.environ.get("VIAKIT_SSH")
        os.environ["VIAKIT_SSH"] = f"ssh -F {folder}/config"
        try:
            yield testbed
        finally:
            if before is None:
                del os.environ["VIAKIT_SSH"]
            else:
                os.environ["VIAKIT_SSH"] = before
