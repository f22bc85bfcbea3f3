"""Every code block of the documentation runs, and every docstring is true."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import mithril

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# The command would run.
MODULES = sorted(module.name for module in pkgutil.walk_packages(mithril.__path__, "mithril.") if "__main__" not in module.name)


# Lightning warns of few workers, of directories with files and of torch's changes.
@pytest.mark.filterwarnings("ignore:::pytorch_lightning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What a page sets, such as the rank of a process, is not for the tests behind it.
    before = dict(os.environ)
    try:
        run_page(page)
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_page(page):
    text = page.read_text()
    names = {"__name__": page.stem}
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        language, code = block.groups()
        if language == "python":
            # Lines as in the page, so that a failure names its place.
            exec(compile("\n" * text.count("\n", 0, block.start(2)) + code, str(page), "exec"), names)
        else:
            assert language == "sh", f"{page}: a block of code that nobody runs"
            for line in code.splitlines():
                run_command(line)


def run_command(line):
    """Runs a line of a shell. The package is installed: these tests run against it."""
    words = shlex.split(line, comments=True)
    if words != ["pip", "install", "."]:
        assert words[0] == "mithril"
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)


def test_pages_have_code():
    assert sum(page.read_text().count("```python") for page in PAGES) >= 10


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_are_true(name):
    module = importlib.import_module(name)
    assert module.__doc__
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
