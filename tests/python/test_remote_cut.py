"""A cable that is pulled between two machines is noticed on both; a machine that is merely busy is not given up."""

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import needs
import pytest
from leftovers import marked
from ssh_hosts import ssh_hosts
from waiting import until

from viakit import remote
from viakit.remote.acks import Connection, _written
from viakit.remote.folders import HostFolders
from viakit.remote.link import Link
from viakit.remote.mux import Foreign, Kind, Lost, Mux, limits

VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 100.0
pytestmark = pytest.mark.timeout(300)

# On h1: an agent for one caller, on a TCP connection as ssh has one.
LISTEN = """
import os, socket
with socket.create_server(("10.77.0.2", 2222)) as listener:
    print("listens", flush=True)
    connection, _ = listener.accept()
os.dup2(connection.fileno(), 0)
os.dup2(connection.fileno(), 1)
from viakit.remote.agent import main
main()
"""
# On h0: what takes the place of ssh, and a process on the host "there" until it ends.
CLIENT = """
import os, socket, threading
connection = socket.create_connection(("10.77.0.2", 2222))
def send():
    while data := os.read(0, 65536):
        connection.sendall(data)
threading.Thread(target=send, daemon=True).start()
while data := connection.recv(65536):
    os.write(1, data)
"""
DRIVE = """
import os, shlex, subprocess, sys
from viakit.remote import Remote
os.environ["VIAKIT_SSH"] = shlex.join([sys.executable, sys.argv[1]])
with Remote("ssh:there") as remote:
    process = remote.hosts[0].popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
    print("runs", flush=True)
    process.wait()
    print(remote.hosts[0].trouble, flush=True)
"""
# In place of ssh: processes that outlive the end of their input. SILENT is an agent that falls silent.
MUTE = "import signal; signal.pause()"
# The same with a child, as ssh has one with a ProxyCommand.
MUTE_WITH_PROXY = """
sleep 1000 <&1 &
touch "$1"
wait
"""
SILENT = """
import signal, time
from viakit.remote.mux import Kind, Mux
mux = Mux(0, 1, print)
mux.send(Kind.HELLO, payload=b'{"python": "3"}')
mux.drain(time.monotonic() + 100)
signal.pause()
"""
# On ssh's way to a server: what the client writes after the exchange of keys never arrives.
HUNG = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
client, kind = open(0, "rb"), 0
server.stdin.write(client.readline())
while kind != 21:  # SSH_MSG_NEWKEYS: packets have been plain so far
    server.stdin.flush()
    head = client.read(4)
    body = client.read(int.from_bytes(head, "big"))
    server.stdin.write(head + body)
    kind = body[1]
server.stdin.flush()
while client.read1(65536):
    pass
server.kill()
"""


@pytest.fixture
def expired(monkeypatch):
    """Return the list of waits for a process that reached their limit: each delays an error beyond its own limit."""
    found = []
    wait = subprocess.Popen.wait

    def recorded(process, timeout=None):
        try:
            return wait(process, timeout)
        except subprocess.TimeoutExpired:
            found.append(timeout)
            raise

    monkeypatch.setattr(subprocess.Popen, "wait", recorded)
    return found


def test_an_ssh_that_never_writes_is_ended_at_the_limit_of_the_contact(expired):
    link = Link("mute", [sys.executable, "-c", MUTE])
    error = link.open(0.2)
    assert "host mute cannot be reached: no answer within 0.2 s" in str(error)
    assert link._process.returncode == -signal.SIGKILL
    assert not expired


def test_an_ssh_that_falls_silent_is_ended_at_the_limit_of_silence(expired, monkeypatch):
    monkeypatch.setenv("VIAKIT_SILENCE_S", "0.3")
    link = Link("silent", [sys.executable, "-c", SILENT])
    assert link.open(LIMIT_S) is None
    until(lambda: link.trouble, "the silence is noticed")
    assert "host silent: lost the connection to the host: the connection has been silent for 0.3 s" in link.trouble
    link.close()
    assert link._process.returncode == -signal.SIGKILL
    assert not expired


def test_a_server_that_is_silent_after_the_exchange_of_keys_is_given_up(tmp_path, monkeypatch):
    """ssh ends before the limit of the first contact. The limit of the server's silence is shortened here."""
    (tmp_path / "hung.py").write_text(HUNG)
    with ssh_hosts(tmp_path, 1):
        text = (tmp_path / "config").read_text()
        way = re.search("ProxyCommand (.*)", text)[1]
        text = text.replace("Host h0", "Host hung h0").replace("LogLevel ERROR", "LogLevel INFO")
        (tmp_path / "config").write_text(text.replace(way, f"{sys.executable} {tmp_path}/hung.py {way}", 1))
        monkeypatch.setattr(remote, "_SERVER_S", 3.0)
        with pytest.raises(remote.RemoteError, match=r"(?s)host hung cannot be reached: .*timed out"):
            remote.Remote("ssh:hung").open()


@pytest.fixture
def two():
    with needs.hosts() as testbed:
        yield testbed.hosts


def test_a_pulled_cable_is_noticed_on_both_machines(two, tmp_path):
    """The limit of silence is far away, so the missing acknowledgements have ended the connection on both sides."""
    (tmp_path / "client.py").write_text(CLIENT)
    how = {"stdout": subprocess.PIPE, "env": {"VIAKIT_SILENCE_S": "1000", "MARK": str(tmp_path)}, "text": True}
    mark = f"MARK={tmp_path}".encode()
    with contextlib.ExitStack() as ends:
        agent = ends.enter_context(two[1].popen([sys.executable, "-c", LISTEN], **how))
        ends.callback(agent.kill)
        assert agent.stdout.readline() == "listens\n"
        driver = ends.enter_context(two[0].popen([sys.executable, "-c", DRIVE, str(tmp_path / "client.py")], **how))
        ends.callback(driver.kill)
        assert driver.stdout.readline() == "runs\n"
        two[1].run(["ip", "link", "set", "eth0", "down"], timeout=LIMIT_S)
        said = driver.stdout.readline()
        assert "host there" in said
        assert "acknowledges no packet" in said
        left = lambda: [words for words in marked(mark).values() if words.startswith("sleep")]  # noqa: E731
        until(lambda: not left(), "sleep has ended")
        assert agent.wait(LIMIT_S) == 0


WAITS = """
import viakit
comm = viakit.world()
comm.barrier()
if comm.rank == 0:
    print("met", flush=True)
comm.recv(source=1 - comm.rank)
"""


@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_a_job_whose_data_wire_is_cut_names_the_hosts_of_its_ranks(tmp_path, protocol):
    """The connections of ssh go on, as they do not use this wire."""
    (tmp_path / "waits.py").write_text(WAITS)
    with ssh_hosts(tmp_path) as testbed:
        words = ["run", "--hosts", "ssh:h0,h1", "--protocol", protocol, tmp_path / "waits.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([Path(sys.executable).with_name("viakit"), *words], text=True, **pipes) as job:
            try:
                assert job.stdout.readline() == "met\n", job.communicate()
                testbed.hosts[1].run(["ip", "link", "set", "eth0", "down"], timeout=LIMIT_S)
                _, errors = job.communicate(timeout=LIMIT_S)
            finally:
                job.kill()
    assert job.returncode == 1
    assert "h0 has rank 0, h1 has rank 1" in errors


@pytest.fixture
def loopback():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


def test_a_process_that_reads_nothing_is_no_cut_cable(loopback):
    near, _ = loopback
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):  # until all buffers are full
        while near.send(bytes(65536)):
            pass
    connection = Connection.of_process(os.getpid())
    assert os.fstat(near.fileno()).st_ino in connection.inodes
    assert not connection.unacknowledged()


def test_an_agent_finds_the_connection_of_its_ssh_server(loopback):
    near, far = loopback
    words = [str(word) for word in (*near.getsockname(), *far.getsockname())]
    found = Connection.of_agent(-1, {"SSH_CONNECTION": " ".join(words)})
    with open("/proc/net/tcp", encoding="ascii") as lines:
        ends = {tuple(line.split()[1:3]) for line in lines}
    assert len(found.ends & ends) == 1
    assert Connection.of_agent(-1, {"SSH_CONNECTION": "no addresses at all"}).ends == set()


def test_addresses_are_written_as_the_kernel_writes_them():
    assert _written("::1", "22")[0].endswith(":0016")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        table = Path("/proc/net/tcp6").read_text(encoding="ascii")
        assert _written("::1", str(listener.getsockname()[1]))[0] in table


@pytest.mark.parametrize("is_cut", [True, False])
def test_silence_alone_ends_no_connection_before_its_limit(is_cut):
    """Without a cut, the same silence is that of a busy machine."""
    near, far = socket.socketpair()
    with near, far:
        probes = []
        mux = Mux(near.fileno(), near.fileno(), print, 1000.0, lambda: probes.append(1) or is_cut, 1e-9)
        peer = Mux(far.fileno(), far.fileno(), print)
        peer.send(Kind.BEAT)
        peer.drain(time.monotonic() + LIMIT_S)
        if is_cut:
            with pytest.raises(Lost, match="acknowledges no packet"):
                mux.turn({}, 0.0)
        else:
            mux.turn({}, 0.0)
        assert probes


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_limits_that_are_no_seconds_are_refused(text):
    with pytest.raises(ValueError, match="VIAKIT_CUT_S is"):
        limits({"VIAKIT_CUT_S": text})
    assert limits({"VIAKIT_SILENCE_S": "20"}) == (2.0, 20.0)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["run", "-n", "2", "prog.py"], signal.SIGINT),
        (["run", "-n", "2", "prog.py"], signal.SIGTERM),
        (["sweep", "tcp"], signal.SIGINT),
        (["doctor"], signal.SIGHUP),
    ],
)
def test_a_command_that_is_interrupted_while_a_host_does_not_reply_ends_with_its_ssh(tmp_path, words, number):
    (tmp_path / "mute.sh").write_text(MUTE_WITH_PROXY)
    (tmp_path / "prog.py").touch()
    mark = f"VIAKIT_TEST_MARK={uuid.uuid4().hex}"
    environment = {**os.environ, "VIAKIT_SSH": f"sh {tmp_path}/mute.sh {tmp_path}/begun"}
    environment.update([mark.split("=")])
    command = [VIAKIT, words[0], "--hosts", "ssh:.,mute", *words[1:]]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "begun").exists, "the client takes the place of ssh")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "no answer" not in errors
    until(lambda: not marked(mark.encode()), "ssh and its ProxyCommand have ended")


def test_text_of_a_login_shell_is_shown_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "chatty.sh").write_text("echo 'Welcome to host beta'\ncat\n")
    monkeypatch.setenv("VIAKIT_SSH", f"sh {tmp_path}/chatty.sh")
    says = "host beta: its login shell wrote 'Welcome to host beta' .*Remedy: `ssh beta true` must print nothing"
    with pytest.raises(remote.RemoteError, match=says):
        remote.Remote("ssh:beta").open()


def test_short_text_of_a_login_shell_is_shown_without_the_frames_behind_it():
    assert Foreign(b"hi\n\x01\x00\x00\x02{}").text == "hi"


def test_a_host_that_cannot_be_opened_leaves_no_connection_to_the_others(monkeypatch):
    """The second temporary file cannot be made."""
    made, before = [], len(os.listdir("/proc/self/fd"))

    def make():
        made.append(0)
        if len(made) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return tempfile_of_python()

    tempfile_of_python = tempfile.TemporaryFile
    monkeypatch.setattr("viakit.remote.link.tempfile.TemporaryFile", make)
    with pytest.raises(remote.RemoteError, match=r"host (\.|beta): .* cannot be started: No space left on device$"):
        remote.Remote("ssh:.,beta").open()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_that_ends_without_an_agent_is_named(monkeypatch):
    monkeypatch.setenv("VIAKIT_SSH", "sh -c :")
    says = "host beta: /bin/true ended there with exit status 0: .*Check it: ssh beta /bin/true -c 'import viakit'"
    with pytest.raises(remote.RemoteError, match=says):
        remote.Remote("ssh:beta", python="/bin/true").open()


@pytest.mark.parametrize(
    ("client", "kind", "says"),
    [
        ("ssh -F 'file", ValueError, 'VIAKIT_SSH is "ssh -F \'file": No closing quotation; expected a command'),
        ("/nowhere/ssh", remote.RemoteError, "host beta: /nowhere/ssh cannot be started: .*Remedy: install OpenSSH"),
    ],
)
def test_a_client_that_cannot_be_started_is_named_with_the_remedy(monkeypatch, client, kind, says):
    monkeypatch.setenv("VIAKIT_SSH", client)
    n_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match=says):
        remote.Remote("ssh:beta").open()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_an_empty_variable_stands_for_the_client_of_openssh(monkeypatch):
    monkeypatch.setenv("VIAKIT_SSH", "")
    assert remote._command("beta", None)[0] == "ssh"


def test_an_agent_needs_no_temporary_folder(monkeypatch):
    """No file can be made on a full disk."""

    def full():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    HostFolders().remove_left()
