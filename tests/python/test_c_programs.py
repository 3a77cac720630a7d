"""libvipl for C programs: what it exports, how it is found, and programs of 2001 that run with it, on every link.

Everything is compiled against the installed package, with what `viakit config` says, and runs outside the source tree.
"""

# ruff: noqa: F401, F811 - fixtures are imported by name

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import needs
import pytest
from c_place import CHECKOUT, LIMIT_S, PROGRAMS, Place, build, compile_to, finish, place, run_pair, testbed

from viakit import config, via

VIAKIT = str(Path(sys.executable).parent / "viakit")
EXAMPLES = ("pingpong", "rdmawrite", "manyvis")
# As strict as a compiler of today can be with the language of then.
STRICT = ["-std=gnu89", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
NOBODY, OTHER_USER = 65534, 64321  # two users that own nothing here


def example(name):
    return config.example_dir() / f"{name}.c"


# ---------------------------------------------------------------- the library


def symbols(path, *options):
    out = subprocess.run([needs.tool("nm"), *options, str(path)], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in out.splitlines()]


def declared():
    """Every function that the installed headers declare."""
    text = "".join((config.include_dir() / name).read_text() for name in ("vipl.h", "viakit.h"))
    return set(re.findall(r"^VIPL_EXPORT[^;(]*?\b((?:Vip|viakit_)\w+)\(", text, flags=re.M))


def test_only_the_calls_are_exported():
    exported = {line[-1].split("@")[0] for line in symbols(config.library(), "-D", "--defined-only") if line[-2] != "A"}
    assert len(declared()) > 60
    assert exported == declared()


def test_no_semaphore_is_used():
    imported = {line[-1].split("@")[0] for line in symbols(config.library(), "-D", "--undefined-only")}
    assert "pthread_create" in imported
    assert not {name for name in imported if name.startswith("sem_")}


def test_the_name_that_programs_record():
    out = subprocess.run(
        [needs.tool("readelf"), "-d", str(config.library())], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"SONAME.*\[libvipl\.so\.1\]", out)
    assert not re.search(r"TEXTREL|RPATH|RUNPATH", out)


def test_the_archive_keeps_its_names_to_itself():
    visible = {line[-1] for line in symbols(config.lib_dir() / "libvipl.a", "--defined-only", "-g") if len(line) == 3}
    assert visible == declared()


def test_one_provider_in_a_process():
    """A NIC that C opens is counted by Python: what is loaded by its path is what the extension uses."""
    library = ctypes.CDLL(str(config.library()))
    handle = ctypes.c_void_p()
    assert library.VipOpenNic(b"loop", ctypes.byref(handle)) == 0
    try:
        assert via.live_objects()["nics"] == 1
    finally:
        assert library.VipCloseNic(handle) == 0
    assert Path("/proc/self/maps").read_text().count(".so.1\n") >= 1
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libvipl" in line}
    assert mapped == {str(config.library())}


# ---------------------------------------------------------------- viakit config


def ask_config(*arguments):
    result = subprocess.run(
        [VIAKIT, "config", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    return result.returncode, result.stdout.strip(), result.stderr.strip()


def test_config_says_what_a_compiler_needs(tmp_path):
    code, line, _ = ask_config("--cflags", "--libs")
    assert (code, shlex.split(line)) == (0, config.cflags() + config.libs())
    compile_to(tmp_path / "pingpong", example("pingpong"), *STRICT, libs=shlex.split(line))
    _, static, _ = ask_config("--libs", "--static")
    assert shlex.split(static)[0].endswith("libvipl.a")
    assert ask_config("--version")[1] == config.version()
    assert ask_config("--prefix")[1] == str(config.prefix())
    assert (Path(ask_config("--pkg-config-dir")[1]) / "vipl.pc").is_file()
    assert (Path(ask_config("--examples")[1]) / "pingpong.c").is_file()
    assert Path(ask_config("--valgrind")[1]) == config.valgrind_suppressions()
    assert ask_config("--library")[1] == str(config.library())


@pytest.mark.parametrize("arguments", [(), ("--static",), ("--cflags", "--static"), ("--no-such",)])
def test_config_wants_sense(arguments):
    assert ask_config(*arguments)[0] == 2


def test_pkg_config_finds_it_wherever_the_folder_is_moved(tmp_path, build):
    tool = needs.tool("pkg-config")
    moved = tmp_path / "moved"
    shutil.copytree(config.include_dir(), moved / "include")
    shutil.copytree(config.lib_dir(), moved / "lib")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    out = subprocess.run(
        [tool, "--cflags", "--libs", "vipl"], env=environment, capture_output=True, text=True, check=True
    )
    compile_to(tmp_path / "program", PROGRAMS / "request.c", libs=shlex.split(out.stdout))
    linked = subprocess.run(
        [needs.tool("ldd"), str(tmp_path / "program")], capture_output=True, text=True, check=True
    ).stdout
    assert str(moved / "lib") in os.path.normpath(re.search(r"libvipl\.so\.1 => (\S+)", linked)[1])
    version = subprocess.run(
        [tool, "--modversion", "vipl"], env=environment, capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == config.version()


# ---------------------------------------------------------------- the examples


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short_and_old(name, build):
    lines = example(name).read_text().splitlines()
    assert len(lines) < 120
    assert max(map(len, lines)) <= 120
    includes = {line.split()[1] for line in lines if line.startswith("#include")}
    assert "<vipl.h>" in includes
    assert "<viakit.h>" not in includes  # they would run with another provider's library as well
    build(example(name), *STRICT)


@pytest.mark.parametrize("standard", ["c++98", "c++17"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_cplusplus_too(name, standard, build):
    language = ["-x", "c++", f"-std={standard}", "-Wall", "-Wextra", "-Werror"]
    program = build(example(name), *language, compiler="c++")
    if name == "manyvis":
        (said,) = finish(Place("loop").popen(0, [program, "loop"]))
        assert "server received 800 texts on 8 VIs" in said


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
@pytest.mark.parametrize(("name", "last"), [("pingpong", "us one way\n"), ("rdmawrite", "word for word\n")])
def test_examples_of_two_programs(name, last, static, place, build):
    program = build(example(name), *STRICT, static=static)
    said = run_pair(place, [program, None], [program, None, place.server_name, "200"])
    assert said[1].endswith(last)


@pytest.mark.parametrize("n_buffers", ["0", "1", "8"])
def test_example_of_a_stream(n_buffers, place, build):
    """The sum is that of the sent bytes: 20 messages, each with its own byte everywhere."""
    program = build(PROGRAMS / "stream.c", *STRICT)
    words = ["20", "65536", n_buffers]
    said = run_pair(place, [program, None, "-", *words], [program, None, place.server_name, *words])
    each = 65536 // 8 * 0x0101010101010101
    total = sum(each * i for i in range(20)) % 2**64 if n_buffers != "0" else 0
    assert said[0] == f"20 messages, sum {total:x}\n"
    assert said[1].endswith(" MB/s\n")


def test_example_of_many_vis(place, build):
    program = build(example("manyvis"), *STRICT)
    said = run_pair(place, [program, None, "serve"], [program, None, place.server_name])
    assert said == ["server received 800 texts on 8 VIs\n", "clients received 800 texts on 8 VIs\n"]


@pytest.mark.parametrize("device", ["loop", "shm:in one process"])
def test_example_of_many_vis_in_one_process(device, build):
    (said,) = finish(Place(device).popen(0, [build(example("manyvis"), *STRICT), device]))
    assert sorted(said.splitlines()) == ["clients received 800 texts on 8 VIs", "server received 800 texts on 8 VIs"]


# Each program takes 1 to 2 s of processor time under each tool, and 5 to 25 s on two cores beside 20 to 60 processes.
SLOW_LIMIT_S = 90.0
TOOLS = {
    "memcheck": ["--leak-check=full", "--show-leak-kinds=definite,indirect,possible"],
    "helgrind": [],
    "drd": [],
}


def valgrind(tool, program, *arguments):
    options = [f"--tool={tool}", *TOOLS[tool], f"--suppressions={config.valgrind_suppressions()}", "-q"]
    return [needs.tool("valgrind"), "--error-exitcode=99", "--fair-sched=try", *options, program, *arguments]


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", ["pingpong", "rdmawrite"])
def test_examples_under_valgrind(name, tool, build):
    program = build(example(name), "-std=gnu89", "-g")
    place = Place(f"shm:valgrind{os.getpid()}")
    run_pair(place, valgrind(tool, program, None), valgrind(tool, program, None, "localhost", "20"), SLOW_LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("tool", TOOLS)
def test_example_of_many_vis_under_valgrind(tool, build):
    program = build(example("manyvis"), "-std=gnu89", "-g")
    finish(Place("loop").popen(0, valgrind(tool, program, "loop")), limit_s=SLOW_LIMIT_S)
    place = Place(f"shm:valgrind{os.getpid()}")
    # Two NICs in one process: their arenas, and each one's map of the other's, must fit into valgrind's addresses.
    finish(place.popen(0, valgrind(tool, program, place.devices[0])), limit_s=SLOW_LIMIT_S)
    run_pair(place, valgrind(tool, program, None, "serve"), valgrind(tool, program, None, "localhost"), SLOW_LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_nic_left_open_under_valgrind(tool, build):
    """Memcheck's leak check reads all readable memory: the arena of shm, 32 GiB of addresses, must not be in it."""
    program = build(PROGRAMS / "leftopen.c", "-std=gnu89", "-g")
    finish(Place("").popen(0, valgrind(tool, program, f"shm:valgrind{os.getpid()}")), limit_s=SLOW_LIMIT_S)


# ---------------------------------------------------------------- a program of 2001

NAMINGS = {"CS and DS": ("-DVIPL095",), "Control and Data": ()}


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_program_of_2001(naming, place, build):
    """Compiled as it was: with warnings, for programs of the time had some, but not with errors."""
    program = build(PROGRAMS / "blast.c", "-std=gnu89", "-w", *NAMINGS[naming])
    other = build(PROGRAMS / "blast.c", "-std=gnu89", "-w", *NAMINGS["CS and DS"])
    said = run_pair(place, [program, "-d", None], [other, "-d", None, "-h", place.server_name, "-n", "500"])
    assert [text.splitlines()[-1] for text in said] == ["500 messages"] * 2


@pytest.mark.parametrize("device", ["/dev/clanvi0", "nic0", "VINIC", "VINIC0", "/dev/via_lo", "/etc/via_lo"])
def test_device_names_of_2001(device, build):
    """The name is in the program; where it leads is said in the environment."""
    program = build(PROGRAMS / "blast.c", "-std=gnu89", "-w")
    environment = {**os.environ, "VIAKIT_DEVICES": f"{device}=shm:history{os.getpid()}", "VI_DEVICE": device}
    place = Place(None)
    server = place.popen(0, [program], env=environment)
    client = place.popen(1, [program, "-h", "nodeb", "-n", "50"], env=environment)
    said = finish(server, client)
    assert [text.splitlines()[-1] for text in said] == ["50 messages"] * 2


# ---------------------------------------------------------------- C and Python

# The other half of pingpong.c. python ROLE DEVICE HOST TURNS
PLAYER = """
import sys
from viakit import via

role, device, host, turns = sys.argv[1:]
with via.Nic(device) as nic, nic.create_region(128) as room:
    vi = nic.create_vi(via.Reliability.RELIABLE_DELIVERY, max_transfer_size=32768)
    catch = via.Descriptor.recv(room[64:])
    vi.post_recv(catch)
    left = 1
    if role == "client":
        vi.connect(nic.resolve(host, b"table 1\\0"), timeout_s=30, retry=True)
        left = 2 * int(turns) - 1
        vi.send(room[:64], immediate=left, timeout_s=10)
    else:
        nic.connect_wait(b"table 1\\0", timeout_s=30).accept(vi)
    throws = int(role == "client")
    while left:
        left = vi.recv_wait(timeout_s=10).immediate
        vi.post_recv(catch)
        if left:
            left -= 1
            vi.send(room[:64], immediate=left, timeout_s=10)
            throws += 1
    print(throws)
"""


@pytest.mark.parametrize("c_role", ["server", "client"])
def test_c_and_python_play(c_role, place, build):
    program = build(example("pingpong"), *STRICT)
    if c_role == "server":
        said = run_pair(
            place, [program, None], [sys.executable, "-c", PLAYER, "client", None, place.server_name, "100"]
        )
        assert said[1] == "100\n"
    else:
        said = run_pair(
            place, [sys.executable, "-c", PLAYER, "server", None, "", "0"], [program, None, place.server_name, "100"]
        )
        assert said[0] == "100\n"


# ---------------------------------------------------------------- two users


@pytest.fixture
def public_program(build):
    """Copy a program, with the library inside, to where every user may run it."""
    folder = Path(tempfile.mkdtemp(prefix="viakit-programs-"))
    folder.chmod(0o755)

    def copy(source, *flags):
        target = folder / Path(source).stem
        shutil.copy(build(source, *flags, static=True), target)
        target.chmod(0o755)
        return target

    yield copy
    shutil.rmtree(folder)


def as_user(uid):
    return {"user": uid, "group": uid, "extra_groups": []}


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@only_root
def test_two_programs_of_one_user_who_owns_nothing(public_program):
    program = public_program(example("pingpong"), *STRICT)
    place = Place("shm:one user")
    server = place.popen(0, [program, "shm:one user"], **as_user(NOBODY))
    client = place.popen(1, [program, "shm:one user", "localhost", "100"], **as_user(NOBODY))
    finish(server, client)


@only_root
def test_another_user_is_refused_on_shm_and_told_why(public_program):
    program = public_program(PROGRAMS / "request.c")
    place = Place("shm:two users")
    server = place.popen(0, [program, "shm:two users", "-w"], **as_user(NOBODY))
    try:
        assert server.stdout.readline() == "waiting\n"
        (said,) = finish(place.popen(1, [program, "shm:two users"], **as_user(OTHER_USER)))
        code, why = said.splitlines()
        assert code == "VIP_NOT_REACHABLE"
        assert f"shm:two users is open for user {NOBODY}" in why
        assert f"this user ({OTHER_USER})" in why
        assert "use eth or udp" in why
    finally:
        server.kill()
        server.communicate()


# ---------------------------------------------------------------- a lack of addresses under valgrind

# Valgrind reports it as EINVAL, the kernel as ENOMEM. A NIC's own arena is shorter then, and its peer's is not.
NO_ADDRESSES = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *address, size_t len, int rights, int flags, int fd, off_t offset)
{
    if (len > 20ul << 30) {
        const char *pipe = fd >= 0 ? getenv("UNTIL_CLOSED") : NULL;
        char byte;
        if (pipe)
            (void)!read(open(pipe, O_RDONLY), &byte, 1); /* the failure comes late: when the test has closed the pipe */
        errno = EINVAL;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, address, len, rights, flags, fd, offset);
}

void *mmap64(void *, size_t, int, int, int, off64_t) __attribute__((alias("mmap")));
"""


@pytest.mark.parametrize("limited", ["client", "server"])
def test_no_addresses_for_the_peers_memory_under_valgrind(limited, tmp_path, build):
    (tmp_path / "few.c").write_text(NO_ADDRESSES)
    compile_to(tmp_path / "few.so", tmp_path / "few.c", "-shared", "-fPIC", libs=[], compiler="cc")
    program, device = build(PROGRAMS / "request.c"), f"shm:few{os.getpid()}"
    few = {"env": {**os.environ, "LD_PRELOAD": str(tmp_path / "few.so")}}
    place = Place(device)
    server = place.popen(0, [program, device, "-w"], **(few if limited == "server" else {}))
    try:
        assert server.stdout.readline() == "waiting\n"
        (said,) = finish(place.popen(1, [program, device], **(few if limited == "client" else {})))
        assert said.startswith("VIP_NOT_REACHABLE\n")
        assert "address space" in said
    finally:
        server.kill()
        server.communicate()


def test_a_server_that_ends_while_its_memory_cannot_be_mapped(tmp_path, build):
    """The client finds no NIC when it repeats its request. The cause is the address space nevertheless."""
    (tmp_path / "few.c").write_text(NO_ADDRESSES)
    compile_to(tmp_path / "few.so", tmp_path / "few.c", "-shared", "-fPIC", libs=[], compiler="cc")
    os.mkfifo(tmp_path / "late")
    program, device = build(PROGRAMS / "request.c"), f"shm:late{os.getpid()}"
    few = {**os.environ, "LD_PRELOAD": str(tmp_path / "few.so"), "UNTIL_CLOSED": str(tmp_path / "late")}
    place = Place(device)
    server = place.popen(0, [program, device, "-w"])
    assert server.stdout.readline() == "waiting\n"
    client = place.popen(1, [program, device], env=few)
    with open(tmp_path / "late", "w"):  # The client opens it where it is about to fail.
        server.kill()
        server.communicate()
    (said,) = finish(client)
    assert said.startswith("VIP_NOT_REACHABLE\n")
    assert "address space" in said


# ---------------------------------------------------------------- from a wheel


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_in_a_fresh_environment(tmp_path):
    """Built, installed where nothing else is, and used from there: the header, the library, the extension."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    settings = ["--no-deps", "--no-build-isolation", f"-Cbuild-dir={CHECKOUT / 'build' / 'python'}"]
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [*pip, "wheel", *settings, "--wheel-dir", str(tmp_path), str(CHECKOUT)],
        check=True,
        timeout=500,
        env=path,
        cwd="/",
    )
    (wheel,) = tmp_path.glob("viakit-*.whl")
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False, symlinks=True)
    python = fresh / "bin" / "python"
    (site,) = fresh.glob("lib/python3*/site-packages")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True, timeout=60, cwd="/")
    # viakit's dependencies come from the environment of the tests, behind the fresh one's own packages.
    (site / "needed.pth").write_text(str(Path(sys.executable).parent.parent / site.relative_to(fresh)) + "\n")

    out = subprocess.run(
        [str(fresh / "bin" / "viakit"), "config", "--cflags", "--libs"],
        check=True,
        capture_output=True,
        text=True,
        cwd="/",
    ).stdout
    assert str(site) in out
    compile_to(tmp_path / "pingpong", site / "viakit" / "examples" / "pingpong.c", *STRICT, libs=shlex.split(out))
    place = Place(f"shm:wheel{os.getpid()}")
    code = "import json, sys; import viakit.via; print(json.dumps([l.split()[-1] for l in open('/proc/self/maps')]))"
    maps = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd="/").stdout)
    assert {path for path in maps if "libvipl" in path} == {str(site / "viakit" / "lib" / "libvipl.so.1")}
    program = tmp_path / "pingpong"
    said = run_pair(place, [program, None], [python, "-c", PLAYER, "client", None, "localhost", "50"])
    assert said[1] == "50\n"


# ---------------------------------------------------------------- the page about all this


def snippets(page, language):
    text = (CHECKOUT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def test_the_commands_of_the_page(tmp_path):
    shutil.copy(example("pingpong"), tmp_path)
    (commands,) = snippets("c-programs.md", "sh")
    commands = commands.replace(" shm", f" shm:page{os.getpid()}")  # not what others use meanwhile
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euc", f"{commands}\nwait"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("us one way\n")


def test_the_python_of_the_page(build):
    place = Place(f"shm:page{os.getpid()}")
    code = (CHECKOUT / "docs" / "snippets" / "c-programs-pingpong.py").read_text()
    code = code.replace('"shm"', repr(place.devices[0]))
    run_pair(place, [build(example("pingpong"), *STRICT), None], [sys.executable, "-c", code])


def test_the_page_shows_the_examples_themselves():
    text = (CHECKOUT / "docs" / "c-programs.md").read_text()
    shown = re.findall(r"\{literalinclude\} \.\./csrc/examples/(\w+)\.c", text)
    assert sorted(shown) == sorted(EXAMPLES)
    for name in shown:
        assert (CHECKOUT / "csrc" / "examples" / f"{name}.c").read_text() == example(name).read_text()
