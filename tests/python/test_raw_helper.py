"""viakit-raw makes packet sockets for users without CAP_NET_RAW, and nothing else.

Each test runs a program as user 65534 in a network namespace of its own with two interfaces, veth0 and veth1.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from viakit import config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file a capability")

# Joins the network namespace that `unshare` has made, then gives up root. Modules are imported first, because the other
# user may not be able to read them.
PROLOGUE = """
import array, ctypes, os, socket, subprocess, sys
import viakit, viakit.errors
from viakit import via
for command in ("link set lo up", "link add veth0 type veth peer name veth1", "link set veth0 up", "link set veth1 up"):
    subprocess.run(["ip", *command.split()], check=True)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)

def helper(*arguments, claim=None):
    "Run the helper by hand; return the text and the descriptor of its reply."
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    claim = claim or socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    script = f'exec 3<&{claim.fileno()} 4<&{its.fileno()}; exec "$VIAKIT_RAW" "$@"'
    subprocess.run(["bash", "-c", script, "helper", *arguments], pass_fds=[claim.fileno(), its.fileno()], timeout=30)
    its.close()
    text, control, _, _ = ours.recvmsg(256, socket.CMSG_SPACE(4))
    return text.decode(), [array.array("i", data)[0] for _, _, data in control]

def claimed(name):
    "Return a socket that holds an abstract name."
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    holder.bind(b"\\0" + name.encode())
    return holder
"""

EXCHANGE = """
data = os.urandom(100_000)
with via.Nic("eth:veth0") as a, via.Nic("eth:veth1") as b, a.create_vi() as here, b.create_vi() as there:
    source, target = a.create_region(len(data)), b.create_region(len(data))
    there.post_recv(via.Descriptor.recv(target[:]))
    there.request_peer(a.address / "here", local="there", timeout_s=20)
    here.connect_peer(b.address / "there", local="here", timeout_s=20)
    while there.peer_done() is None:
        pass
    memoryview(source)[:] = data
    here.post_send(via.Descriptor.send(source[:]))
    there.recv_wait(timeout_s=20)
    here.send_wait(timeout_s=20)
    assert bytes(memoryview(target)) == data
    here.disconnect()
    there.disconnect()
print(os.geteuid(), "exchanged")
"""

REFUSED = """
try:
    via.Nic("eth:veth0")
except viakit.errors.NicPermissionError as error:
    print("refused:", error)
"""

ATTACKS = """
print(helper("veth0", "0", "1514"))
print(helper("veth0", "0", "1514", claim=claimed("viakit/eth/veth1/7")))
print(helper("veth0", "0", "1514", claim=claimed("viakit/eth/veth0/07")))
print(helper("veth0", "0", claim=claimed("viakit/eth/veth0/8")))
print(helper("veth9", "0", "1514", claim=claimed("viakit/eth/veth9/9")))
"""

LOCKED = """
text, (fd,) = helper("veth0", "0", "65535", claim=claimed("viakit/eth/veth0/9"))
raw = socket.socket(fileno=fd)
pass_all = (6).to_bytes(2, sys.byteorder) + bytes(2) + (0x40000).to_bytes(4, sys.byteorder)
buffer = ctypes.create_string_buffer(pass_all)
program = (1).to_bytes(2, sys.byteorder) + bytes(6) + ctypes.addressof(buffer).to_bytes(8, sys.byteorder)
for option, value in ((26, program), (27, 0)):  # SO_ATTACH_FILTER, SO_DETACH_FILTER
    try:
        raw.setsockopt(socket.SOL_SOCKET, option, value)
        print("changed", option)
    except PermissionError:
        print("locked", option)
raw.bind(("veth0", 3))  # ETH_P_ALL
other, (fd,) = helper("veth1", "1", "0", claim=claimed("viakit/eth/veth1/9"))
sender = socket.socket(fileno=fd)
def frame(port, ethertype):
    "A frame of the wire's length: destination and source, type, then a header of zeros with this port."
    head = b"\\xff" * 6 + bytes(6) + ethertype.to_bytes(2, "big")
    return head + port.to_bytes(2, "little") * 32
raw.settimeout(10)
for one in (frame(9, 0x0806), frame(8, 0x88B5), frame(9, 0x88B5)):
    sender.send(one)
got = raw.recv(2000)
print("received", got == frame(9, 0x88B5))
"""


@pytest.fixture
def helper() -> Iterator[Path]:
    """Copy the helper to a place that all users can read, and give it CAP_NET_RAW."""
    folder = Path(tempfile.mkdtemp(prefix="viakit-raw-"))
    folder.chmod(0o755)
    copy = folder / "viakit-raw"
    shutil.copy(config.raw_helper(), copy)
    copy.chmod(0o755)
    # struct vfs_cap_data, revision 2: CAP_NET_RAW (13) permitted and effective
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    try:
        os.setxattr(copy, "security.capability", capability)
        yield copy
    except OSError as error:
        pytest.skip(f"this file system holds no capabilities: {error}")
    finally:
        shutil.rmtree(folder)


def run(program: str, helper: Path | str) -> list[str]:
    """Run a program as user 65534 in a network namespace; return the lines that it prints."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROLOGUE + program],
        env={**os.environ, "VIAKIT_RAW": str(helper)},
        capture_output=True,
        text=True,
        timeout=100,
        cwd="/",
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"network namespaces are refused here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_user_without_privilege_exchanges_raw_frames(helper: Path) -> None:
    assert run(EXCHANGE, helper) == ["65534 exchanged"]


def test_without_a_capability_the_error_names_the_next_step(helper: Path) -> None:
    os.removexattr(helper, "security.capability")
    (line,) = run(REFUSED, helper)
    assert "does the program have CAP_NET_RAW?" in line
    assert "viakit config --raw" in line


def test_without_a_helper_the_error_names_the_next_step() -> None:
    (line,) = run(REFUSED, "/nonexistent/viakit-raw")
    assert "/nonexistent/viakit-raw failed: No such file or directory" in line
    assert "use udp" in line


def test_the_helper_refuses_ports_that_the_caller_does_not_hold(helper: Path) -> None:
    no_port = "('descriptor 3 holds no port of this interface', [])"
    assert run(ATTACKS, helper) == [
        no_port,
        no_port,
        no_port,
        "('expected INTERFACE LEAST MOST', [])",
        "('the interface does not exist', [])",
    ]


def test_the_filter_stays_whatever_the_user_does_with_the_socket(helper: Path) -> None:
    """Frames of other types and for other ports do not arrive, even if the user binds the socket to all protocols."""
    assert run(LOCKED, helper) == ["locked 26", "locked 27", "received True"]
