"""%%ranks and %viakit: cells on persistent ranks, errors reported once, interrupts, and the end with the kernel."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading

import needs
import pytest
import waiting

needs.module("ipyparallel", "lab")
nbclient = needs.module("nbclient", "lab")
nbformat = needs.module("nbformat", "lab")

from viakit.lab import _ranks_host  # noqa: E402
from viakit.lab.magics import ViakitMagics  # noqa: E402
from viakit.lab.ranks import RankError, Ranks, RanksEnded  # noqa: E402

DEADLINE_S = 60.0
wait_for = functools.partial(waiting.until, limit_s=DEADLINE_S)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3) as three:
        yield three


def gone(pids) -> bool:
    """Whether none of these processes runs."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    return False
        except OSError:
            pass
    return True


def test_the_controllers_file_is_read_when_it_is_whole(tmp_path):
    """It is there before its contents are."""
    path = tmp_path / "ipcontroller-client.json"
    whole = '{"key": "abc", "control": 4711}'
    assert _ranks_host._read_whole(path) is None
    for n in range(len(whole)):
        path.write_text(whole[:n])
        assert _ranks_host._read_whole(path) is None
    path.write_text(whole)
    assert _ranks_host._read_whole(path) == {"key": "abc", "control": 4711}


def test_ranks_are_in_order_and_connected(ranks):
    assert ranks.run("rank") == ["0", "1", "2"]
    assert ranks.run("comm.allreduce(rank + 1)") == ["6", "6", "6"]


def test_names_stay(ranks):
    ranks.run("import numpy as np\nmine = np.full(2, float(rank))")
    assert ranks.run("total = np.zeros(2); comm.Allreduce(mine, total); float(total[1])") == ["3.0"] * 3


def test_output_is_passed_on_by_rank(ranks):
    said = []
    ranks.run("print('line of', rank)", on_text=lambda rank, stream, text: said.append((rank, stream, text)))
    assert sorted(said) == [(rank, "stdout", f"line of {rank}\n") for rank in range(3)]


def test_what_is_written_comes_while_the_cell_runs(ranks):
    """Rank 0 writes, and goes on only when the output has arrived: else this ends by the time-out."""
    said = threading.Event()
    code = """
import os, time
path = {path!r}
if rank == 0:
    print("speaking", flush=True)
    deadline = time.monotonic() + 20
    while not os.path.exists(path):
        assert time.monotonic() < deadline, "the notebook did not report the line"
"""
    path = f"/tmp/viakit-heard-{os.getpid()}"

    def hear(rank, stream, text):
        open(path, "w").close()
        said.set()

    try:
        ranks.run(code.format(path=path), on_text=hear, timeout_s=30)
    finally:
        os.unlink(path)
    assert said.is_set()


def test_an_exception_is_told_once_for_all(ranks):
    with pytest.raises(RankError, match=r"^all 3 ranks: ZeroDivisionError: division by zero$"):
        ranks.run("1 / 0")
    with pytest.raises(RankError, match=r"^ranks 0, 2: KeyError: 7$") as caught:
        ranks.run("if rank != 1: {}[7]")
    assert set(caught.value.errors) == {0, 2}
    assert ranks.run("comm.allreduce(1)") == ["3"] * 3


def test_tracebacks_that_differ_in_numbers_are_shown_once(capsys):
    magics = object.__new__(ViakitMagics)  # without a shell, which only the first error of a notebook needs
    magics._exceptions_are_ours = True
    errors = {rank: ("KeyError", f"no rank {rank + 1}", [f"the lines of rank {rank}"]) for rank in range(3)}
    magics._show_tracebacks(RankError(errors, 3), 3)
    assert capsys.readouterr().err == "--- all 3 ranks (traceback of rank 0)\nthe lines of rank 0\n"
    errors[1] = ("ValueError", "no rank 2", ["another"])
    magics._show_tracebacks(RankError(errors, 3), 3)
    shown = capsys.readouterr().err
    assert shown == "--- rank 0, 2 (traceback of rank 0)\nthe lines of rank 0\n--- rank 1\nanother\n"


def test_ranks_that_wait_for_one_that_failed_are_interrupted(ranks):
    with pytest.raises(RankError, match=r"^rank 1: ValueError: gone\nranks 0, 2 were still waiting") as caught:
        ranks.run("if rank == 1: raise ValueError('gone')\ncomm.recv(source=1, tag=5)")
    assert caught.value.waiting == [0, 2]
    assert ranks.run("comm.allreduce(1)") == ["3"] * 3


def test_ctrl_c_stops_ranks_that_wait_for_a_message(ranks):
    def interrupt(rank, stream, text):
        if rank == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ranks.run("print('waiting', flush=True)\ncomm.recv(source=(rank + 1) % 3, tag=77)", on_text=interrupt)
    assert ranks.run("rank") == ["0", "1", "2"]


def test_ctrl_c_stops_a_rank_that_had_not_begun(ranks):
    """It is stopped itself when the others are interrupted, and takes up the cell after that."""
    pid = ranks.pids[2]
    late = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))

    def interrupt(rank, stream, text):
        if late.ident is None:
            late.start()
        os.kill(os.getpid(), signal.SIGINT)

    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(KeyboardInterrupt):
        ranks.run(
            "if rank == 0: print('waiting', flush=True)\ncomm.recv(source=(rank + 1) % 3, tag=77)", on_text=interrupt
        )
    late.join()
    assert ranks.run("rank") == ["0", "1", "2"]


def test_a_cell_may_have_a_deadline(ranks):
    with pytest.raises(TimeoutError):
        ranks.run("while True: pass", timeout_s=0.3)
    assert ranks.run("rank") == ["0", "1", "2"]


def test_ranks_that_ignore_the_interrupt_are_ended(monkeypatch):
    monkeypatch.setattr("viakit.lab.ranks._INTERRUPT_S", 1.0)
    said = set()

    def interrupt(rank, stream, text):
        said.add(rank)
        if len(said) == 2:  # both ignore it by now
            os.kill(os.getpid(), signal.SIGINT)

    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: pass"
    with Ranks(2) as ranks:
        pids = ranks.pids.values()
        with pytest.raises(RanksEnded, match="did not react to the interrupt"):
            ranks.run(deaf, on_text=interrupt)
        wait_for(lambda: gone(pids))
        assert not ranks.alive


def test_when_a_rank_dies_all_end_and_say_so():
    with Ranks(2) as ranks:
        pids = ranks.pids.values()
        with pytest.raises(RanksEnded, match="rank 1 ended with exit status 3"):
            ranks.run("import os\nif rank == 1: os._exit(3)\nelse: comm.recv(source=1)")
        wait_for(lambda: gone(pids))
        assert not ranks.alive
        with pytest.raises(RanksEnded, match="gone"):
            ranks.run("rank")


def test_ranks_end_with_the_process_that_made_them():
    program = (
        "from viakit.lab.ranks import Ranks\nimport sys\nranks = Ranks(2)\n"
        "print(*ranks.pids.values(), ranks._host.pid, ranks._folder, flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        *pids, folder = process.stdout.readline().split()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    assert len(pids) == 3
    wait_for(lambda: gone(pids))
    wait_for(lambda: not os.path.exists(folder))


def test_ranks_on_hosts_of_a_testbed():
    needs.hosts(2).close()
    with Ranks(2, hosts=2) as ranks:
        assert ranks.run("import socket; socket.gethostname()") == ["'h0'", "'h1'"]
        assert ranks.run("comm.allreduce(rank)") == ["1", "1"]


def test_ranks_that_mpirun_starts():
    """VIA between them, an interrupt that leaves them alive, an exception, and an end without remains."""
    flavour = "openmpi"
    needs.mpi_library(f"mpi:{flavour}")
    with Ranks(2, launcher=f"mpi:{flavour}") as ranks:
        assert f"started by mpi:{flavour}" in repr(ranks)
        code = "from viakit.launch import bootstrap; bootstrap().launcher, rank, comm.allreduce(rank + 1)"
        assert ranks.run(code) == [f"('{flavour}', 0, 3)", f"('{flavour}', 1, 3)"]
        with pytest.raises(TimeoutError):
            ranks.run("comm.recv(source=1 - rank, tag=5)", timeout_s=0.3)
        with pytest.raises(RankError, match=r"^rank 1: ValueError: planted$"):
            ranks.run("if rank == 1: raise ValueError('planted')")
        assert ranks.run("type(comm).__name__") == ["'Intracomm'"] * 2
        pids = ranks.pids.values()
    wait_for(lambda: gone(pids))


def test_ranks_over_mpi_itself():
    flavour = "mpich"
    needs.mpi_library(f"mpi:{flavour}")
    with Ranks(2, f"mpi:{flavour}") as ranks:
        assert ranks.run("comm.allreduce(rank + 1), type(comm).__name__") == ["(3, 'Intracomm')"] * 2
        pids = ranks.pids.values()
    wait_for(lambda: gone(pids))


def test_ranks_that_cannot_be_started_say_why():
    """In a sentence, and without a traceback of the process that keeps them."""
    needs.mpi_library("mpi:mpich")
    with pytest.raises(
        RanksEnded, match=r"^the 4 ranks could not be started:\n4 ranks on 3 hosts: under mpiexec [^\n]*$"
    ):
        Ranks(4, launcher="mpi:mpich", hosts=3)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"n": n} for n in (0, 1.5, "two", None)),
        *({"n": 2, "hosts": hosts} for hosts in (3, -1)),
        {"n": 2, "launcher": "ssh"},
        {"n": 2, "protocol": "smoke"},
        {"n": 2, "hosts": 1, "rate": "fast"},
        {"n": 2, "hosts": 1, "mtu": 0},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(wrong):
    with pytest.raises(ValueError, match="expected"):
        Ranks(**wrong)


# ------------------------------------------------------------------------------------------------ in a kernel

CELLS = [
    "%load_ext viakit",
    "%%ranks -n 2\nprint('hello of', rank, 'of', size)",
    "%%ranks\nkept = rank + 10\ncomm.allreduce(kept)",
    "%%ranks\nif rank == 1: raise ValueError('planted')",
    "%%ranks\nfrom IPython.display import HTML, display\nfor i in range(3):\n"
    "    if rank == 0: display(HTML(f'<b>{i}</b>'), display_id='live')\n    comm.Barrier()",
    "%ranks",
    "swept = %viakit sweep unix --sizes 8,64 --seconds 0.3",
    "swept.protocols, [p['nbytes'] for p in swept['series'][0]['points']]",
    "%viakit sweep nonsense",
    "%ranks --stop",
    "%ranks",
    "c = %viakit collectives --operations bcast --algorithms flat --sizes 8 --ranks 2 --no-mpi --seconds 0.1\n"
    "a = %viakit app ep --class S --json=app.json\nc.kind, a.kind, a['command']",
    "%viakit sweep 'tcp",
    "%viakit app",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("notebook"))
    cells = [nbformat.v4.new_code_cell(cell, metadata={"tags": ["raises-exception"]}) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=DEADLINE_S, kernel_name="python3")
    client.execute(cwd=folder)
    return notebook.cells


def texts(cell) -> str:
    return "".join(output.get("text", "") or str(output.get("data", "")) for output in cell.outputs)


def errors(cell) -> list[str]:
    return [f"{one['ename']}: {one['evalue']}" for one in cell.outputs if one["output_type"] == "error"]


def test_magic_labels_lines_by_rank(executed):
    assert sorted(texts(executed[1]).split("\n"))[-2:] == ["[0] hello of 0 of 2", "[1] hello of 1 of 2"]
    assert "[0] 21\n" in texts(executed[2])
    assert "[1] 21\n" in texts(executed[2])


def test_magic_tells_an_exception_once(executed):
    assert errors(executed[3]) == ["RankError: rank 1: ValueError: planted"]
    assert texts(executed[3]).count("raise ValueError('planted')") <= 1


def test_magic_pictures_change_in_place(executed):
    shown = [one for one in executed[4].outputs if one["output_type"] == "display_data"]
    assert [one["data"]["text/html"] for one in shown] == ["<b>2</b>"]


def test_magic_sweep_gives_a_result(executed):
    assert not errors(executed[6])
    assert "['unix'], [8, 64]" in texts(executed[7]).replace("(", "")


def test_every_command_that_measures_gives_a_result(executed):
    assert not errors(executed[11])
    said = texts(executed[11])
    assert "'collective', 'application', 'viakit app ep --class S --json=app.json'" in said.replace("(", "")
    assert texts(executed[13]).startswith("sor ")


def test_magic_errors_are_sentences(executed):
    assert "unknown protocol 'nonsense'" in texts(executed[8])
    assert "No closing quotation" in texts(executed[12])
    assert "Traceback" not in texts(executed[8]) + texts(executed[12])


def test_magic_stop(executed):
    assert "2 ranks on this machine" in texts(executed[5])
    assert "no ranks are running" in texts(executed[10])


def test_another_wire_wants_other_ranks(monkeypatch):
    """Settings that are not given stay as they are. A given setting that differs is an error."""
    from viakit.lab import magics

    class Fake:
        alive, n = True, 2

        def __init__(self, n, protocol, **options):
            self.options = {"ranks": n, "protocol": protocol, **options}

        def close(self):
            self.alive = False

    monkeypatch.setattr(magics, "Ranks", Fake)
    ours = magics.ViakitMagics(None)
    words = "-n 2 --hosts testbed:2"
    first = ours.ranks_line(words)
    assert first.options["mtu"] == 1500
    assert ours.ranks_line(words) is first
    slow = ours.ranks_line(words + " --rate 10mbit")
    assert slow is not first
    assert slow.options["rate"] == "10mbit"
    machines = ours.ranks_line("--hosts ssh:a*2,b --network udp:10.0.0.0/24")
    assert machines.options["ranks"] == 3
    assert machines.options["hosts"] == "ssh:a*2,b*1"
    assert ours.ranks_line("--hosts ssh:a*2,b*1") is machines
    assert ours.ranks_line("--hosts ssh:a*2,b --network eth:eth0") is not machines
    assert ours.ranks_line("--hosts ssh:a,b --protocol mpi").options["protocol"] == "mpi"
    last = ours.ranks_line(words + " --mtu 9000")
    assert last.options["mtu"] == 9000
    for slip in (
        "-n 0",
        "--protocol smoke",
        "--policy pigeons",
        "-n 2 --hosts testbed:9",
        "--hosts testbed:2 --rate fast",
        "--hosts ssh:a,,b",
        "--hosts a,b",
        "-n 2 --hosts ssh:a,b,c --protocol mpi",
        "--mtu 0",
    ):
        with pytest.raises(magics.UsageError, match=r"expected|choose one of"):
            ours.ranks_line(slip)
        assert last.alive, "a slip of the pen ends no ranks"
    ours.stop()
