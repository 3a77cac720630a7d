#!/usr/bin/env python3
"""Check the English of comments, docstrings and Markdown against a short list of words, each with its replacement.

tools/diction.py [PATH...] checks the files below PATH that CLEAN names. With --strict it checks the others, too; with
--all it prints the number of findings in each folder. A folder or file is added to CLEAN once its prose follows the
rules in CONTRIBUTING.md. A long sentence is a warning. The exit status is 1 if anything else was found.
"""

import argparse
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders end with a slash. One per line and sorted, so that two branches can both add some.
CLEAN = (
    "CONTRIBUTING.md",
    "README.md",
    "apps/__init__.py",
    "apps/arrays.py",
    "apps/command.py",
    "apps/counting.py",
    "apps/ep.py",
    "apps/fft.py",
    "apps/is_.py",
    "apps/is_numpy.py",
    "apps/jobs.py",
    "apps/plain/",
    "apps/sor.py",
    "apps/water.py",
    "apps/water_exchange.py",
    "apps/water_numpy.py",
    "viakit/bench/application_goals.py",
    "apps/harness.py",
    "apps/phases.py",
    "apps/reporting.py",
    "apps/results.py",
    "apps/speedup.py",
    "apps/tracing.py",
    "apps/turns.py",
    "csrc/base/",
    "csrc/bench/",
    "csrc/bip/",
    "csrc/coll/",
    "csrc/examples/",
    "csrc/include/",
    "csrc/kernels/",
    "csrc/link/",
    "csrc/msg/",
    "csrc/peers/",
    "csrc/via/connect/",
    "csrc/via/data/",
    "csrc/via/engine.h",
    "csrc/via/enter.h",
    "csrc/via/error.h",
    "csrc/via/limits.h",
    "csrc/via/link_services.c",
    "csrc/via/link_services.h",
    "csrc/via/mem.h",
    "csrc/via/nic.h",
    "csrc/via/notify.h",
    "csrc/via/objects/",
    "csrc/via/observer.h",
    "csrc/via/own.h",
    "csrc/via/pending.h",
    "csrc/via/vi.h",
    "csrc/via/work.h",
    "csrc/watch/",
    "docs/apps.md",
    "docs/bip.md",
    "docs/c-programs.md",
    "docs/choices.md",
    "docs/collectives.md",
    "docs/comm.md",
    "docs/contributing.md",
    "docs/design.md",
    "docs/devices.md",
    "docs/errors.md",
    "docs/faults.md",
    "docs/glossary.md",
    "docs/harness.md",
    "docs/howto.md",
    "docs/index.md",
    "docs/inspect.md",
    "docs/install.md",
    "docs/lab.md",
    "docs/lessons.md",
    "docs/measuring.md",
    "docs/messages.md",
    "docs/papers.md",
    "docs/provider.md",
    "docs/python.md",
    "docs/reference-c.md",
    "docs/reference-cli.md",
    "docs/reference-python.md",
    "docs/results.md",
    "docs/running.md",
    "docs/seeing.md",
    "docs/snippets/",
    "docs/speedup.md",
    "docs/states.md",
    "docs/testbed.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "docs/udp.md",
    "notebooks/",
    "tests/conftest.py",
    "tests/python/c_place.py",
    "tests/python/kernel.py",
    "tests/python/leftovers.py",
    "tests/python/needs.py",
    "tests/python/synthetic.py",
    "tests/python/test_app_each.py",
    "tests/python/test_app_ep.py",
    "tests/python/test_app_fft.py",
    "tests/python/test_app_is.py",
    "tests/python/test_app_sor.py",
    "tests/python/test_barrier.py",
    "tests/python/test_bip.py",
    "tests/python/test_diction.py",
    "tests/python/test_docstrings.py",
    "tests/python/waiting.py",
    "tools/diction.py",
    "viakit/__init__.py",
    "viakit/__main__.py",
    "viakit/bench/goals.py",
    "viakit/demo.py",
    "viakit/measure/calibrate_messages.py",
    "viakit/base/calibration_file.py",
    "viakit/cli/barriers.py",
    "viakit/cli/base.py",
    "viakit/cli/collective.py",
    "viakit/cli/group.py",
    "viakit/cli/notebook.py",
    "viakit/cli/machine.py",
    "viakit/cli/results.py",
    "viakit/cli/running.py",
    "viakit/cli/sweeping.py",
    "viakit/cli/tracing.py",
    "viakit/comm/cart.py",
    "viakit/comm/communicator.py",
    "viakit/comm/datatype.py",
    "viakit/comm/errors.py",
    "viakit/comm/group.py",
    "viakit/comm/message.py",
    "viakit/comm/op.py",
    "viakit/comm/seal.py",
    "viakit/comm/schedule.py",
    "viakit/comm/objects.py",
    "viakit/comm/collective_calls.py",
    "viakit/comm/collective.py",
    "viakit/comm/over_mpi.py",
    "viakit/comm/point.py",
    "viakit/comm/request.py",
    "viakit/comm/spec.py",
    "viakit/comm/status.py",
    "viakit/comm/step.py",
    "viakit/comm/worlds.py",
    "viakit/_core/cbench.pxd",
    "viakit/_core/cbip.pxd",
    "viakit/_core/conn.pxi",
    "viakit/_core/cq.pxi",
    "viakit/_core/desc.pxi",
    "viakit/_core/fault.pxi",
    "viakit/_core/library.pxi",
    "viakit/_core/mem.pxi",
    "viakit/_core/msg.pxi",
    "viakit/_core/msg_comm.pxi",
    "viakit/_core/msg_request.pxi",
    "viakit/_core/notice.pxi",
    "viakit/_core/nic.pxi",
    "viakit/_core/vi.pxi",
    "viakit/_core/options.pxi",
    "viakit/_core/names.pxi",
    "viakit/_core/notify.pxi",
    "viakit/_core/peer.pxi",
    "viakit/_core/queue.pxi",
    "viakit/_core/tap.pxi",
    "viakit/_core/msg_world.pxi",
    "viakit/_core/group.pxi",
    "viakit/_core/coll.pxi",
    "viakit/_core/bench.pxi",
    "viakit/_core/bip.pxi",
    "viakit/_core/via.pxi",
    "viakit/base/faults.py",
    "viakit/base/limits.py",
    "viakit/measure/endpoints.py",
    "viakit/measure/kinds.py",
    "viakit/measure/pair.py",
    "viakit/measure/plot.py",
    "viakit/measure/pyloop.py",
    "viakit/measure/report.py",
    "viakit/measure/result.py",
    "viakit/measure/sides.py",
    "viakit/measure/sockbuf.py",
    "viakit/measure/sweep.py",
    "viakit/measure/table.py",
    "viakit/testbed/call.py",
    "viakit/testbed/host.py",
    "viakit/testbed/namespaces.py",
    "viakit/testbed/netlink.py",
    "viakit/testbed/process.py",
    "viakit/base/types.py",
    "viakit/base/words.py",
    "viakit/measure/barrier.py",
    "viakit/bip.py",
    "viakit/measure/calibrate.py",
    "viakit/cli/__init__.py",
    "viakit/measure/collectives.py",
    "viakit/comm/__init__.py",
    "viakit/config.py",
    "viakit/doctor.py",
    "viakit/errors.py",
    "viakit/inspect.py",
    "viakit/lab/",
    "viakit/measure/__init__.py",
    "viakit/measure/analysis.py",
    "viakit/measure/channel.py",
    "viakit/measure/children.py",
    "viakit/measure/comparison.py",
    "viakit/measure/crew.py",
    "viakit/measure/turns.py",
    "viakit/measure/environment.py",
    "viakit/measure/fit.py",
    "viakit/measure/ladder.py",
    "viakit/measure/loss.py",
    "viakit/launch/",
    "viakit/measure/own.py",
    "viakit/measure/ranks.py",
    "viakit/measure/stats.py",
    "viakit/measure/worker.py",
    "viakit/mpi.py",
    "viakit/trace/",
    "viakit/via.py",
)
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".cpp", ".md"}
SKIPPED = {".git", ".venv", "build", "node_modules", "__pycache__"}
LONGEST = 30  # words in a sentence, before a warning
WORDS = [  # a pattern and the words to use instead
    (r"he|his|him|himself|she|hers?|herself", "it, its, they"),
    (r"whoever|whosoever", "a subject with a name: the process that, the caller that"),
    (r"(some|no|every|any)body", "the peer, a rank, all ranks, no process"),
    (r"tell|tells|told|telling", "report, notify, return, state, distinguish"),
    (r"ask|asks|asked|asking", "request, query, require"),
    (r"hear|hears|heard", "receive"),
    (r"(say|says|said|saying) so", "report it, state it"),
    (r"strangers?", "unknown peer"),
    (r"dear|dearer|dearest", "expensive"),
    (r"(come|comes|came) to be", "is, becomes"),
    (r"there (is|are|was|were) none", "a subject and a verb: no frame is left, the peer has none"),
    (r"of (ours|theirs|yours)", "our, their, your"),
    (r"upon which", "then"),
]
WORD = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})\b)" for i, (pattern, _) in enumerate(WORDS)), re.IGNORECASE)
OPENING = re.compile(r"(?:What|Who|Whom|Whose|Of)\s(?=[^?]*$)")
SENTENCE = re.compile(r"\S.*?(?:[.!?:](?=[\"')\]*_]*(?:\s|$))|\Z)", re.DOTALL)
# Not prose: code spans, targets of links, addresses, HTML tags and comments, doctest lines.
OPAQUE = re.compile(
    r"(`+).+?\1|\]\([^)\s]*\)|https?://\S+|<!--.*?-->|</?\w[^>\n]*>|^[ \t]*(?:>>>|\.\.\.).*$", re.S | re.M
)
STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
LONG = r'"""(?:\\.|[^\\])*?"""'
C_TOKEN = re.compile(rf"{STRING}|(/\*.*?\*/|//[^\n]*)", re.DOTALL)
CYTHON_TOKEN = re.compile(rf"^[ \t]*[rR]?({LONG})|{LONG}|{STRING}|(#[^\n]*)", re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(```+|:::+|~~~+)[ \t]*(\S*).*?$")
PROSE_FENCES = {"{note}", "{tip}", "{warning}", "{admonition}", "{glossary}", "{hint}", "{important}"}
STARTS = {getattr(tokenize, name) for name in "ENCODING NEWLINE NL INDENT DEDENT COMMENT".split()}
Passage = tuple[int, str]  # the number of the first line, and the text


def markdown(source: str) -> Iterator[Passage]:
    """Yield the prose of a page and the comments of its cells; everything else becomes blank lines."""
    source = re.sub(r"\A---\n.*?\n---\n", lambda front: "\n" * front[0].count("\n"), source, flags=re.DOTALL)
    lines, fences = [], []  # the fences that are open, innermost last
    for line in source.splitlines():
        match = FENCE.match(line)
        if match and fences and line.strip().startswith(fences[-1][0]) and not match[2]:
            fences.pop()
            lines.append("")
        elif match and (not fences or fences[-1][1] in PROSE_FENCES):
            fences.append(match.groups())
            lines.append("")
        elif fences and fences[-1][1] not in PROSE_FENCES:
            comment = re.search(r"(?:^|\s\s)# (.*)", line)  # behind code it stands alone, as an item of a list
            lines.append(("" if line.lstrip()[:1] == "#" else "- ") + comment[1] if comment else "")
        else:  # a heading is not a sentence, a row of a table is several
            lines.append(re.sub(r"^[ \t]*(#+ |\|)", "\u2016", line))
    yield 1, "\n".join(lines)


def python(source: str) -> Iterator[Passage]:
    """Yield comments, and strings that are statements of their own: docstrings."""
    last, depth = tokenize.ENCODING, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and last in STARTS and not depth):
            yield token.start[0], token.string
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        last = token.type


def scanned(pattern: re.Pattern[str], source: str) -> Iterator[Passage]:
    """Yield the comments that *pattern* finds in C or Cython."""
    for match in pattern.finditer(source):
        for text in filter(None, match.groups()):
            yield source.count("\n", 0, match.end() - len(text)) + 1, text


def passages(name: str, source: str) -> list[Passage]:
    """Return the prose of a file, with comments on successive lines joined."""
    suffix = Path(name).suffix
    if suffix == ".md":
        return list(markdown(source))
    pattern = C_TOKEN if suffix in (".c", ".h", ".cpp") else CYTHON_TOKEN
    found = python(source) if suffix in (".py", ".pyi") else scanned(pattern, source)
    joined: list[Passage] = []
    for line, text in found:
        text = re.sub(r"^[ \t]*(?:#[!:]?|//+|/\*+|\*+/?|[rR]?\"\"\")|\*/$|\"\"\"$", "", text, flags=re.MULTILINE)
        if joined and joined[-1][0] + joined[-1][1].count("\n") + 1 == line and "\n" not in text:
            joined[-1] = joined[-1][0], f"{joined[-1][1]}\n{text}"
        else:
            joined.append((line, text))
    return joined


def check(name: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the message, and whether it is an error, of each finding in *source*."""
    for first, text in passages(name, source):
        text = OPAQUE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
        for match in WORD.finditer(text):
            message = f'"{match[0]}" -> {WORDS[int(match.lastgroup[1:])][1]}'
            yield first + text.count("\n", 0, match.start()), message, True
        for paragraph in re.finditer(r"\S.*?(?=\n[ \t]*\n|\n[ \t]*(?:[-*+\u2016]|\d+\.) ?|\Z)", text, re.DOTALL):
            if paragraph[0].startswith("\u2016"):
                continue
            for sentence in SENTENCE.finditer(paragraph[0]):
                line = first + text.count("\n", 0, paragraph.start() + sentence.start())
                words = re.sub(r"^[-*+_\"'( ]+", "", sentence[0])
                if OPENING.match(words):
                    yield (
                        line,
                        f'"{words.split()[0]} ..." opens a sentence -> begin with a noun: the NIC, the frame',
                        True,
                    )
                if sentence[0].count(";") > 1:
                    yield line, "a chain of semicolons -> sentences, or a list", True
                if len(words.split()) > LONGEST:
                    yield line, f"{len(words.split())} words -> sentences of at most 25", False


def sources(paths: list[Path]) -> Iterator[Path]:
    """Yield the files below *paths* that hold prose."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES and file.is_file() and not SKIPPED & set(file.relative_to(ROOT).parts):
                yield file


def main() -> int:
    """Run the command line above; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the English of comments, docstrings and Markdown.")
    parser.add_argument("--strict", action="store_true", help="check all files, not only those that CLEAN names")
    parser.add_argument("--all", action="store_true", help="print the number of findings in each folder")
    parser.add_argument("paths", metavar="PATH", nargs="*", default=[ROOT], help="default: this checkout")
    options = parser.parse_args()
    paths = [Path(path).resolve() for path in options.paths]
    for path in paths:
        if not path.exists() or not path.is_relative_to(ROOT):
            parser.error(f"{path} is not a file or folder in {ROOT}; give one that is")
    counts: collections.Counter[str] = collections.Counter()
    for file in sources(paths):
        name = file.relative_to(ROOT).as_posix()
        clean = any(name == one or (one.endswith("/") and name.startswith(one)) for one in CLEAN)
        if not (clean or options.strict or options.all):
            continue
        for line, message, error in check(name, file.read_text(encoding="utf-8")):
            counts[str(Path(name).parent)] += error
            if not options.all:
                print(f"{name}:{line}: {'' if error else 'warning: '}{message}")
    if options.all:
        rows = [f"{counts[folder]:6} {folder}\n" for folder in sorted(counts)]
        print("".join(rows) + f"{counts.total():6}")
        return 0
    return 1 if counts.total() else 0


if __name__ == "__main__":
    sys.exit(main())
