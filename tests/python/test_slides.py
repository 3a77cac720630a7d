"""The slides of the course: a page of the PDF for each slide, and one HTML file that needs nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import needs

ROOT = Path(__file__).parents[2]


def test_the_pdf_has_a_page_for_each_slide(tmp_path):
    needs.tool("chromium")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "slides", "--no-figures", "--out", tmp_path],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    slides = (ROOT / "docs" / "teaching" / "slides.txt").read_text(encoding="utf-8").split("\n---\n")
    pages = re.findall(rb"/Type\s*/Page\b", (tmp_path / "slides.pdf").read_bytes())
    assert len(pages) == len(slides) > 10
    page = (tmp_path / "slides.html").read_text(encoding="utf-8")
    assert page.count("<section>") == len(slides)
    numbers = re.findall(r'<small class="number">(\d+)</small></section>', page)
    assert numbers == [str(number) for number in range(1, len(slides) + 1)]
    assert not re.search(r'(?:src|href)="https?:', page), "the page loads something from the network"
