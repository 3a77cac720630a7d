"""tools/attack.py: its table, seeds and page. The attacks themselves are made by `make attack`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "attack.py"
spec = importlib.util.spec_from_file_location("attack", TOOL)
attack = importlib.util.module_from_spec(spec)
sys.modules["attack"] = attack  # for its dataclasses
spec.loader.exec_module(attack)


@pytest.fixture
def three(tmp_path, monkeypatch):
    """Attacks that hold, break, and cannot be made."""
    monkeypatch.setattr(attack, "KEPT", tmp_path)
    made = [
        attack.Attack("firm", "shm", "knocks", lambda seed: attack.Outcome(3)),
        attack.Attack("soft", "shm", "knocks", lambda seed: attack.Outcome(1, "it fell", output=f"seed was {seed}")),
        attack.Attack("absent", "shm", "knocks", lambda seed: attack.Outcome(left_out="no door")),
    ]
    monkeypatch.setattr(attack, "attacks", lambda: made)
    return made


def test_what_breaks_is_named_with_its_seed(three, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{attack.BEGIN}\nold\n{attack.END}\nafter\n", encoding="utf-8")
    assert attack.main(["--seconds", "0.05", "--seed", "3", "--markdown", str(page)]) == 1
    firm, soft, absent = three
    assert firm.runs > 0
    assert firm.tries == 3 * firm.runs
    assert firm.row()[-1] == "held"
    assert soft.row()[-1].startswith("broken: seed ")
    assert absent.row()[-1] == "left out: no door"
    kept = tmp_path / f"soft-{soft.broken[0]}.txt"
    assert kept.read_text() == f"seed was {soft.broken[0]}"
    assert "BROKEN soft" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| firm | shm |" in text
    assert "old" not in text


def test_a_failure_is_repeated_by_its_seed(three, capsys):
    assert attack.main(["--only", "soft", "--again", "77"]) == 1
    assert "seed was 77" in capsys.readouterr().out
    assert attack.main(["--only", "firm", "--seconds", "0.01"]) == 0


def test_an_attack_without_a_target_has_not_held():
    one = attack.Attack("lost", "shm", "knocks", lambda seed: attack.Outcome())
    attack.siege([one], 0.05, 3)
    assert one.runs
    assert one.row()[-1] == "not tried: the attacker found no target"


def test_a_crash_is_told_from_an_error():
    assert attack.crashed(-11, "")
    assert attack.crashed(1, "rank 2 was ended by SIGSEGV")
    assert not attack.crashed(1, "MPI.Exception: rank 2 has died")


def test_every_attack_has_a_name_of_its_own():
    names = [one.name for one in attack.attacks()]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names), "commas separate the names of --only"
