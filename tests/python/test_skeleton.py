"""The package as installed for users: complete, quick to import, and without open files."""

import importlib.metadata
import importlib.resources
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import viakit

CHECKOUT = Path(__file__).resolve().parents[2]
HEAVY = "click jsonschema matplotlib mpi4py multiprocessing numpy plotly rich zmq viakit._core".split()


def python(code: str, *args: str, **env: str) -> subprocess.CompletedProcess:
    """Run *code* in a fresh interpreter, outside the source tree."""
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, **env},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_is_the_installed_one():
    assert viakit.__version__ == importlib.metadata.version("viakit")


def test_import_opens_nothing_and_loads_nothing_heavy():
    code = """
import json, os, sys
look = lambda: sorted((fd, os.readlink(f"/proc/self/fd/{fd}")) for fd in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{fd}"))
before = look()
import viakit
print(json.dumps({
    "opened": [entry for entry in look() if entry not in before],
    "heavy": [name for name in sys.argv[1:] if name in sys.modules],
    "threads": len(os.listdir("/proc/self/task")),
}))
"""
    result = python(code, *HEAVY)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"opened": [], "heavy": [], "threads": 1}


def test_the_type_marker_is_installed():
    assert (importlib.resources.files("viakit") / "py.typed").is_file()


def test_every_submodule_is_named_and_loads():
    for name in viakit._SUBMODULES:
        assert name in dir(viakit)
        assert name in viakit.__all__
        assert getattr(viakit, name).__name__ == f"viakit.{name}"


def test_an_unknown_attribute_is_named():
    with pytest.raises(AttributeError, match="no attribute 'infiniband'"):
        _ = viakit.infiniband


def test_the_extension_loads():
    assert importlib.util.find_spec("viakit._core") is not None
    result = python("import viakit._core")
    assert result.returncode == 0, result.stderr


def test_the_source_tree_says_how_to_get_the_compiled_part():
    result = python("import viakit; viakit.via", PYTHONPATH=str(CHECKOUT))
    assert result.returncode != 0
    assert "make setup" in result.stderr


@pytest.mark.parametrize(
    "command",
    [[str(Path(sys.executable).parent / "viakit")], [sys.executable, "-m", "viakit"]],
    ids=["viakit", "python -m viakit"],
)
def test_the_command_explains_itself(command):
    result = subprocess.run(
        [*command, "--help"], cwd="/", capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "sweep" in result.stdout
    assert not result.stderr
