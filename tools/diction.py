#!/usr/bin/env python3
"""Check the English of comments, docstrings and Markdown against a short list of words, each with its replacement.

tools/diction.py [PATH...] checks the files below each PATH, by default this checkout. With --all it prints the number
of findings in each folder. A long sentence is a warning. The exit status is 1 if anything else was found.
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
# Not prose: code spans, targets of links, addresses, HTML tags and comments, doctest lines. In docstrings also tables,
# and the blocks after :: and after a line of \b.
OPAQUE = re.compile(
    r"(`+).+?\1|\]\([^)\s]*\)|https?://\S+|<!--.*?-->|</?\w[^>\n]*>|^[ \t]*(?:>>>|\.\.\.).*$", re.S | re.M
)
BLOCK = re.compile(
    r"^[ \t]*\\b\n(?:[ \t]*\S.*\n)+"
    r"|::\n\n([ \t]+)\S.*(?:\n\1.*|\n(?=\n))*"
    r"|^[ \t]*=+ =[ =]*\n(?:.*\n)*?[ \t]*=+ =[ =]*\n(?=\s*\n|\Z)",
    re.M,
)
STRING = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
LONG = r'"""(?:\\.|[^\\])*?"""'
C_TOKEN = re.compile(rf"{STRING}|(/\*.*?\*/|//[^\n]*)", re.DOTALL)
CYTHON_TOKEN = re.compile(rf"^[ \t]*[rR]?({LONG})|{LONG}|{STRING}|(#[^\n]*)", re.MULTILINE)
VERBATIM = re.compile(rf"^cdef extern from [^\n]*:\n[ \t]*{LONG}", re.MULTILINE)  # C code
FENCE = re.compile(r"^[ \t]*(```+|:::+|~~~+)[ \t]*(\S*).*?$")
PROSE_FENCES = {"{note}", "{tip}", "{warning}", "{admonition}", "{glossary}", "{hint}", "{important}"}
STARTS = {getattr(tokenize, name) for name in "ENCODING NEWLINE NL INDENT DEDENT COMMENT".split()}
ROW = re.compile(r"^  (?= +\S.*?\S  +\S)", re.MULTILINE)  # of a list or a picture in C: indented, with columns
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
            behind = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
            text = f"# - {token.string[1:]}" if behind else token.string  # behind code it is an item of a list
            yield token.start[0], text
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        last = token.type


def scanned(pattern: re.Pattern[str], source: str) -> Iterator[Passage]:
    """Yield the comments that *pattern* finds in C or Cython."""
    for match in pattern.finditer(source):
        for text in filter(None, match.groups()):
            begin = match.end() - len(text)
            mark = 1 if text[0] == "#" else 2 * (text[0] == "/")
            behind = mark and source[source.rfind("\n", 0, begin) + 1 : begin].strip()
            yield source.count("\n", 0, begin) + 1, f"{text[:mark]} - {text[mark:]}" if behind else text


def passages(name: str, source: str) -> list[Passage]:
    """Return the prose of a file, with comments on successive lines joined."""
    suffix = Path(name).suffix
    if suffix == ".md":
        return list(markdown(source))
    pattern = C_TOKEN if suffix in (".c", ".h", ".cpp") else CYTHON_TOKEN
    marks = r"#[!:]?" if pattern is CYTHON_TOKEN else r"//+|/\*+|\*+/?"
    if pattern is CYTHON_TOKEN:
        source = VERBATIM.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    found = python(source) if suffix in (".py", ".pyi") else scanned(pattern, source)
    joined: list[Passage] = []
    for line, text in found:
        text = re.sub(rf"^[ \t]*(?:{marks}|[rR]?\"\"\")|\*/$|\"\"\"$", "", text, flags=re.MULTILINE)
        if pattern is C_TOKEN:
            text = ROW.sub("- ", text)
        if joined and joined[-1][0] + joined[-1][1].count("\n") + 1 == line and "\n" not in text:
            joined[-1] = joined[-1][0], f"{joined[-1][1]}\n{text}"
        else:
            joined.append((line, text))
    return joined


def check(name: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the message, and whether it is an error, of each finding in *source*."""
    for first, text in passages(name, source):
        text = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
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
