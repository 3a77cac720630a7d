"""Jobs of several ranks: ranks find each other under every launcher, and none is left after any kind of end."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tty

import needs
import pytest
from launch_job import DEADLINE_S, HELLO, VIAKIT, gone, viakit_run
from ports import free_port

from viakit import _core, launch
from viakit.launch import mpi_library as mpi
from viakit.launch import rendezvous as _rendezvous
from viakit.launch.agent import mpi_agent
from viakit.launch.rendezvous import Client, Meeting, RendezvousError
from viakit.launch.runner import Options

# ---- finding each other


@pytest.mark.parametrize("n", [1, 3, 8])
def test_ranks_find_each_other(script, n):
    done = viakit_run("-n", str(n), script(HELLO))
    assert done.returncode == 0, done.stderr
    way = "rendezvous" if n > 1 else ""
    expected = [f"viakit/{way}/{r}/{n}/{socket.gethostname()}/None" for r in range(n)]
    assert sorted(done.stdout.split()) == expected


@pytest.mark.parametrize("placement", ["block", "cyclic"])
def test_ranks_on_hosts(script, placement):
    needs.hosts().close()
    done = viakit_run("-n", "4", "--hosts", "testbed:2", "--placement", placement, script(HELLO))
    assert done.returncode == 0, done.stderr
    hosts = {"block": "0011", "cyclic": "0101"}[placement]
    expected = [f"viakit/rendezvous/{r}/4/h{hosts[r]}/eth:eth0" for r in range(4)]
    assert sorted(done.stdout.split()) == expected


WAYS = [(flavour, way) for flavour in mpi.FLAVOURS for way in ("", "mpi4py", "rendezvous")]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_standard_streams_that_the_shell_has_closed(script, closed):
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *VIAKIT, "run", "-n", "2", script("print('hello')")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout == ("" if closed.startswith(">") else "hello\nhello\n")
    assert done.stderr == ""


@pytest.mark.parametrize(("flavour", "way"), [*WAYS, ("mpich", "pmi")])
def test_under_mpirun(script, tmp_path, flavour, way):
    found = needs.mpi_library(f"mpi:{flavour}")
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_BOOTSTRAP": way}
    command = found.command([sys.executable, script(HELLO)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [
        f"{flavour}/{way or 'mpi4py'}/{r}/2/{socket.gethostname()}/None" for r in range(2)
    ]


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_mpirun_across_hosts(script, tmp_path, flavour):
    found = needs.mpi_library(f"mpi:{flavour}")
    environment = {**os.environ, **found.environment(str(tmp_path))}
    if flavour == "openmpi":
        environment["OMPI_MCA_btl"] = "self,sm,tcp"
    with needs.hosts() as hosts, mpi_agent(hosts) as agent:
        command = agent.command(found, 2, [sys.executable, script(HELLO)])
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"{flavour}/mpi4py/{r}/4/h{r // 2}/eth:eth0" for r in range(4)]


def test_pmi_where_the_launcher_has_none(script, tmp_path):
    found = needs.mpi_library("mpi:openmpi")  # speaks PMIx
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_BOOTSTRAP": "pmi"}
    command = found.command([sys.executable, script(HELLO)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode != 0
    assert "no PMI_FD" in done.stderr


def test_alone(monkeypatch):
    for name in ("VIAKIT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert launch.detect() == launch.Place("alone", 0, 1)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, ("mpich", 2, 3)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMI_RANK": "0", "PMI_SIZE": "1"},
            ("openmpi", 0, 1),
        ),
        ({"SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8"}, ("srun", 7, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("alone", 0, 1)),  # a batch script
    ],
)
def test_what_launchers_leave(environment, place):
    assert launch.detect(environment) == launch.Place(*place)


@pytest.mark.parametrize("size", ["", "0", "2", "x"])
def test_an_environment_that_makes_no_sense(size):
    with pytest.raises(launch.LaunchError, match="VIAKIT_SIZE"):
        launch.detect({"VIAKIT_RANK": "2", "VIAKIT_SIZE": size})


@pytest.mark.parametrize(
    ("nodes", "first"), [("node[03-07,11],gpu1", "node03"), ("a1", "a1"), ("a1,b[2-3]", "a1"), ("n[7]", "n7")]
)
def test_slurms_first_node(monkeypatch, nodes, first):
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    assert launch._first_node() == first


# ---- the exchange itself


SECRET = bytes(range(32))


def in_threads(n: int, address: str, sizes: list[int] | None = None) -> list[object]:
    from concurrent.futures import ThreadPoolExecutor

    def one(rank: int) -> object:
        client, _ = _rendezvous.connect(address, rank, (sizes or [n] * n)[rank], SECRET, 10.0)
        try:
            return client.exchange(bytes([rank]) * rank * 100_000, 10.0)
        except RendezvousError as error:
            return str(error)
        finally:
            client.close()

    stop = _rendezvous.listen_for(address, n, SECRET)
    try:
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(one, range(n)))
    finally:
        stop()


def free_tcp() -> str:
    return f"tcp:127.0.0.1:{free_port()}"


@pytest.mark.parametrize("kind", ["unix", "file", "tcp"])
def test_a_meeting(kind, tmp_path):
    addresses = {"unix": f"unix:@viakit-test-{os.getpid()}", "file": f"unix:{tmp_path}/meeting", "tcp": free_tcp()}
    blobs = [bytes([rank]) * rank * 100_000 for rank in range(5)]
    assert in_threads(5, addresses[kind]) == [blobs] * 5
    assert not list(tmp_path.iterdir())


def test_the_socket_file_of_a_killed_job_is_no_obstacle(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/meeting")
    assert in_threads(1, f"unix:{tmp_path}/meeting") == [[b""]]


@pytest.mark.parametrize("sizes", [[2, 3], [2, 1]])
def test_ranks_that_disagree_on_their_number(sizes):
    answers = in_threads(2, f"unix:@viakit-test-{os.getpid()}-size", sizes)
    assert all(f"as one of {sizes[1]}" in str(answer) for answer in answers), answers


def test_no_meeting_point():
    with pytest.raises(RendezvousError, match="VIAKIT_RENDEZVOUS=tcp"):
        _rendezvous.connect(f"unix:@viakit-test-{os.getpid()}-nobody", 1, 2, SECRET, 0.1)


@pytest.mark.parametrize("address", ["udp:1.2.3.4:5", "tcp:host", "tcp:host:0", "unix:@", "unix:name", ""])
def test_addresses_that_make_no_sense(address):
    with pytest.raises(RendezvousError, match="VIAKIT_RENDEZVOUS"):
        _rendezvous.connect(address, 0, 2, SECRET, 0.1)


@pytest.mark.parametrize("address", ["fd:x", "fd:999"])
def test_descriptors_that_are_not_open(address):
    with pytest.raises(RendezvousError, match="VIAKIT_RENDEZVOUS"):
        _rendezvous.open_inherited(address, 2)


def test_a_rank_that_leaves_is_told_to_the_others():
    meeting = Meeting(2)
    pairs = [socket.socketpair() for _ in range(2)]
    for rank, (near, _) in enumerate(pairs):
        meeting.admit(rank, near)
    stays = Client(pairs[0][1], 2)
    pairs[0][1].setblocking(True)
    pairs[0][1].sendall(b"VKX1" + (1).to_bytes(4, "little") + b"x")
    meeting.handle(set(meeting.interest()))
    pairs[1][1].close()
    meeting.handle(set(meeting.interest()))
    pairs[0][1].setblocking(False)
    stays._wait = lambda *arguments: pytest.fail("nothing was answered")
    stays._send = lambda *arguments: None  # its request was sent already
    with pytest.raises(RendezvousError, match="rank 1 left before all had met"):
        stays.exchange(b"x", 1.0)
    stays.close()
    meeting.close()


# ---- how jobs end


def test_the_first_failure_counts(script):
    done = viakit_run(
        "-n",
        "4",
        script("""
        import sys, time
        from viakit.launch import bootstrap
        job = bootstrap()
        job.exchange(b"")
        if job.rank == 2:
            raise ValueError("the planted one")
        time.sleep(100)
        """),
    )
    assert done.returncode == 1
    assert done.stderr.count("ValueError: the planted one") == 1
    assert "rank 2 ended with exit status 1; the 3 still running are ended" in done.stderr


@pytest.mark.parametrize(("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_exit_status(script, end, status):
    assert (
        viakit_run("-n", "2", script(f"import os, sys\nif os.environ['VIAKIT_RANK'] == '1': {end}")).returncode
        == status
    )


def test_a_rank_that_ends_before_the_exchange(script):
    done = viakit_run(
        "-n",
        "2",
        script("""
        import os
        from viakit.launch import bootstrap, RendezvousError
        if os.environ["VIAKIT_RANK"] == "0":
            try:
                bootstrap().exchange(b"")
            except RendezvousError as error:
                print(error)
        """),
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stdout


def test_labels_whole_lines_and_input(script):
    done = viakit_run(
        "-n",
        "2",
        "--label",
        script("""
        import os, sys
        word = sys.stdin.readline().strip() or "nothing"
        for part in ("one ", "line of ", word, "\\n", "no end"):
            sys.stdout.write(part); sys.stdout.flush()
        """),
        input="typed\n",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] no end",
        "[0] one line of typed",
        "[1] no end",
        "[1] one line of nothing",
    ]


def test_one_ranks_output_is_passed_on_as_it_is():
    text = "b'a' * 200_000 + bytes(range(256)) + b'no end'"
    done = subprocess.run(
        [*VIAKIT, "run", "--", sys.executable, "-c", f"import sys; sys.stdout.buffer.write({text})"],
        capture_output=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == eval(text)


@pytest.mark.parametrize("label", [False, True])
def test_nothing_is_added_to_lines_but_labels(script, label):
    done = viakit_run(
        "-n",
        "2",
        *["--label"] * label,
        script("""
        import os
        from viakit.launch import bootstrap
        job = bootstrap()
        for rank in 0, 1:
            if job.rank == rank:
                text = str(rank) * 200_000 + chr(10) + "no end"
                while text:
                    text = text[os.write(1, text.encode()):]
            job.exchange(b"")
        """),
    )
    assert done.returncode == 0, done.stderr
    if label:
        # A label is at the beginning of a line, wherever the other rank's line was left unfinished.
        assert {line[:5] for line in done.stdout.splitlines()} == {"[0] 0", "[1] 1", "[0] n", "[1] n"}
    else:
        assert done.stdout.count("\n") == 2
        assert sorted(done.stdout.replace("no end", "").split()) == ["0" * 200_000, "1" * 200_000]
    for one in ("no end", "0", "1"):
        assert done.stdout.count(one) == {"no end": 2}.get(one, 200_000 + label * done.stdout.count(f"[{one}]"))


def test_all_output_arrives_where_the_reader_is_slow_and_the_pipe_does_not_block():
    mine, theirs = os.pipe()
    os.set_blocking(theirs, False)
    code = "import os; data = b'x' * 999 + b'.'\nfor _ in range(1000): os.write(1, data)"
    with open(mine, "rb", buffering=0) as reader:
        process = subprocess.Popen([*VIAKIT, "run", "--", sys.executable, "-c", code], stdout=theirs)
        os.close(theirs)
        got = bytearray()
        while data := reader.read(3000):
            got += data
        assert process.wait(DEADLINE_S) == 0
    assert len(got) == 1_000_000


@pytest.mark.parametrize("n", [1, 2])
def test_a_job_whose_output_is_no_longer_read_ends(n):
    mine, theirs = os.pipe()
    with open(mine, "rb") as reader:
        process = subprocess.Popen(
            [*VIAKIT, "run", "-n", str(n), "yes"], stdout=theirs, stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        assert reader.read(2) == b"y\n"
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGPIPE, said
    assert "ended by SIGPIPE" in said
    assert "Broken pipe" not in said


def test_output_that_cannot_be_written_is_told():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*VIAKIT, "run", "echo", "word"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S
        )
    assert done.returncode == 1
    assert done.stderr == "viakit run: output cannot be written: No space left on device\n"


@pytest.fixture
def terminal():
    """The two ends of a terminal."""
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_all_that_is_typed_arrives(terminal):
    typist, keyboard = terminal
    tty.setraw(keyboard)
    code = """
import fcntl, sys
fcntl.fcntl(0, 1031, 4096)  # F_SETPIPE_SZ: there is hardly any room
print("up", flush=True)
data = b""
while len(data) < 100_000:
    data += sys.stdin.buffer.raw.read(1000)
print(data == bytes(range(250)) * 400)
"""
    process = subprocess.Popen(
        [*VIAKIT, "run", "--", sys.executable, "-c", code], stdin=keyboard, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        rest = bytes(range(250)) * 400
        while rest and process.poll() is None:
            assert select.select([], [typist], [], DEADLINE_S)[1]
            rest = rest[os.write(typist, rest[:1000]) :]
        said, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert (process.returncode, said) == (0, "True\n")


# The shell of the next test: a session of its own, whose terminal is another process group's while the job starts.
SHELL = """
import fcntl, os, select, signal, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, preexec_fn=lambda: os.setpgid(0, 0))
while not select.select([job.stdout], [], [], 0.02)[0]:
    pid, status = os.waitpid(job.pid, os.WNOHANG | os.WUNTRACED)
    if pid:
        os.killpg(job.pid, signal.SIGKILL)
        sys.exit("it was stopped" if os.WIFSTOPPED(status) else "it ended")
print(job.stdout.readline().decode().strip())
os.tcsetpgrp(0, job.pid)  # fg
print(job.communicate()[0].decode().strip())
"""


def test_in_the_background_there_is_no_input_and_in_the_foreground_there_is(terminal):
    typist, keyboard = terminal
    os.write(typist, b"typed\n")
    command = [*VIAKIT, "run", "--", "sh", "-c", 'echo up; read word; echo "read $word"']
    done = subprocess.run(
        [sys.executable, "-c", SHELL, *command], stdin=keyboard, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout.splitlines() == ["up", "read typed"], done.stderr


def test_any_program_and_environment():
    done = viakit_run(
        "-n", "1", "--env", "WORD=a b", "--protocol", "tcp", "--", "sh", "-c", 'echo "$WORD $VIAKIT_PROTOCOL"'
    )
    assert (done.returncode, done.stdout) == (0, "a b tcp\n")


def test_time_out():
    word = f"1{os.getpid()}.25"
    done = viakit_run("-n", "2", "--timeout", "0.3", "--", "sleep", word)
    assert done.returncode == 124
    assert "after 0.3 s" in done.stderr
    gone(word)


@pytest.mark.parametrize(("end", "status"), [("", 0), ("; exit 3", 3)])
def test_what_a_rank_leaves_behind_does_not_hold_the_job(end, status):
    word = f"2{os.getpid()}.5"  # it keeps the rank's output open
    done = viakit_run("-n", "2", "--", "sh", "-c", f"sleep {word} & echo there{end}")
    assert done.returncode == status, done.stderr
    assert "there" in done.stdout
    gone(word)


def test_there_may_be_more_ranks_than_files_that_are_allowed_at_first():
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    done = viakit_run("-n", "40", "--", "true", preexec_fn=few)
    assert done.returncode == 0, done.stderr


def test_ranks_are_bound_to_cores_if_there_are_enough():
    cores = sorted(os.sched_getaffinity(0))
    program = ["--", sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    n = min(2, len(cores))
    done = viakit_run("-n", str(n), "--bind", "core", *program)
    assert sorted(done.stdout.splitlines()) == sorted(f"[{core}]" for core in cores[:n]), done.stderr
    assert f"bound to cores {', '.join(map(str, cores[:n]))}" in done.stderr
    many = len(cores) + 1
    done = viakit_run("-n", str(many), "--bind", "core", *program)
    assert done.stdout.splitlines() == [str(cores)] * many, done.stderr
    assert f"{many} ranks on {len(cores)} core" in done.stderr
    with pytest.raises(ValueError, match="ranks that viakit starts on this machine"):
        Options(ranks=2, bind="core", hosts=2).check()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "0", "x.py"], "1<=x<=1024"),
        (["x.py"], "x.py: no such file"),
        (["nothing-of-this-name"], "no such program"),
        (["-m"], "needs the name of a module"),
        (["--hosts", "testbed:0", "x.py"], "testbed:N"),
        (["--hosts", "testbed:3", "-n", "2", "true"], "a rank for each host"),
        (["--timeout", "-1", "true"], "more than 0"),
        (["--env", "X", "true"], "NAME=VALUE"),
    ],
)
def test_what_makes_no_sense(words, text):
    done = viakit_run(*words)
    assert done.returncode in (1, 2)
    assert text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_there_and_no_program_is_told_from_what_is_not_there(tmp_path):
    (tmp_path / "no exec").write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.py").mkdir()
    for word, said in (
        ("./no exec", "./no exec: is there, but not executable: chmod +x './no exec'"),
        ("no exec", "./no exec: is there, but not executable: chmod +x './no exec'"),
        ("/etc/passwd", "is there, but not executable"),
        (".", "is a folder"),
        ("./folder", "is a folder"),
        ("folder.py", "is a folder"),
        ("./nothing", "no such program"),
    ):
        done = viakit_run("-n", "1", word, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr
        assert "no such" in said or "no such" not in done.stderr
    (tmp_path / "no exec").chmod(0o755)
    done = viakit_run("-n", "1", "no exec", cwd=tmp_path)
    assert "is './no exec'" in done.stderr, done.stderr
    assert viakit_run("-n", "1", "./no exec", cwd=tmp_path).stdout == "ran\n"


def test_options_are_checked_before_anything_starts():
    with pytest.raises(ValueError, match="placement"):
        Options(ranks=1, placement="random").check()
    with pytest.raises(ValueError, match=r"no policy 'pigeons'; choose one of .*mvich"):
        Options(ranks=1, policy="pigeons").check()
    with pytest.raises(ValueError, match="no field 'feathers'"):
        Options(ranks=1, policy="via,feathers=2").check()
    for policy in ("", "tcp", "via,credits=16", "credits=16", *_core.policies()):
        Options(ranks=1, policy=policy).check()
    with pytest.raises(ValueError, match=r"'pigeons'; expected via, bip"):
        Options(ranks=1, protocol="pigeons").check()
    done = viakit_run("-n", "2", "--policy", "pigeons", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert "no policy 'pigeons'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("hosts", ["local", "testbed:2"])
def test_whatever_ends_the_launcher_ends_the_ranks(script, number, hosts):
    if hosts != "local":
        needs.hosts().close()
    word = f"word-{os.getpid()}-{number.value}-{hosts}"
    path = script("""
        import signal
        from viakit.launch import bootstrap
        job = bootstrap()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)   # a stubborn one
        job.exchange(b"")
        if job.rank == 0:
            print("ready", flush=True)
        signal.pause()
        """)
    launcher = subprocess.Popen(
        [*VIAKIT, "run", "-n", "2", "--hosts", hosts, path, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"ready\n"
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == (-9 if number == signal.SIGKILL else 130), err
    gone(word)


def test_a_forked_child_is_no_rank(script):
    done = viakit_run(
        "-n",
        "2",
        script("""
        import os
        from viakit.launch import bootstrap, LaunchError
        bootstrap()
        if os.fork() == 0:
            try:
                bootstrap()
            except LaunchError as error:
                os.write(1, b"refused\\n")
            os._exit(0)
        os.wait()
        """),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n" * 2
