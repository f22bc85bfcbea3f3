"""Every code block of the documentation runs, and every docstring is true."""

import doctest
import importlib
import inspect
import operator
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


def sections():
    """Each section of the reference by the module it is about."""
    text = (DOCS / "reference.md").read_text()
    for heading, body in re.findall(r"^## `(mithril[\w.]*)`\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        yield pytest.param(heading, body, id=heading)


def parameters(function):
    """What a function takes, as the reference writes it."""
    written = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(one.startswith("*") for one in written):
            written.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        written.append(stars + name)
    return written[1:] if written[:1] == ["self"] else written


@pytest.mark.parametrize(("name", "body"), list(sections()))
def test_the_reference_has_the_arguments_that_calls_take(name, body):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    calls = re.findall(r"`(\.?[A-Za-z_][\w.]*)\(([^`]*)\)`", body)
    for call, arguments in calls:
        path = f"Dictionary{call}" if call.startswith(".") else call
        try:
            function = operator.attrgetter(path.removeprefix("mithril."))(module)
        except AttributeError:
            assert call in ELSEWHERE, f"`{call}` is not in {name}"
            continue
        takes = parameters(function)
        listed = [argument.partition("=")[0] for argument in " ".join(arguments.split()).split(", ") if argument]
        if "..." not in listed:
            assert listed == takes, call
        assert [argument for argument in takes if argument in listed] == [one for one in listed if one != "..."], call


# Calls of torch and Lightning that the reference speaks of.
ELSEWHERE = ("Trainer",)


def test_the_reference_has_every_method_of_compressors():
    text = (DOCS / "reference.md").read_text()
    public = [name for name in vars(mithril.checkpoint.Compressor) if not name.startswith("_")]
    methods = [name for name in public if inspect.isfunction(getattr(mithril.checkpoint.Compressor, name))]
    assert "keys" in methods and not [name for name in methods if f"`{name}`" not in text]
