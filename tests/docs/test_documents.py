"""The documents are true: commands print what they show, snippets are valid, excerpts and links exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from ci.cli.main import cli
from ci.gha.yaml_reader import read
from ci.local import copy_tree
from ci.spec.models import Defaults, Fleet, Job, Pool, SuiteDecl, Triggers, Workflow
from ci.suites.quarantine import QuarantineFile
from tests.docs.snippets import Snippet, fits, is_excerpt, run, snippets

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
TEXTS = {path: (ROOT / path).read_text(encoding="utf-8") for path in DOCUMENTS}
SNIPPETS = [snippet for path, text in TEXTS.items() for snippet in snippets(path, text)]
SECTIONS = {
    f"{path}#{section}": list(found)
    for (path, section), found in groupby((one for one in SNIPPETS if one.runs), lambda one: (one.path, one.section))
}
NOT_RUN = {
    ("README.md#Two commands", "both install from the network; the checks of every pull request run them"),
    ("CONTRIBUTING.md#", "installs from the network; the checks of every pull request run it"),
    ("CONTRIBUTING.md#Documents", "the first is compared by a test, and the second makes new journals with new times"),
    ("docs/adopting.md#From nothing to a plan", "installs from the network"),
    ("docs/adopting.md#From nothing to a plan", "needs a repository on GitHub"),
    ("docs/adopting.md#Keep it true", "a line of your own workflow"),
    ("docs/kernels.md#How they are proven", "these compile for a minute or need a Hopper GPU"),
    ("docs/kernels.md#How to measure", "the first two need a GPU, and a test compares what the third writes"),
}
"""Where a block does not run, and the reason that the document gives."""
MODELS: tuple[type[BaseModel], ...] = (Workflow, Fleet, Job, Pool, SuiteDecl, Defaults, Triggers, QuarantineFile)
TODAY = "2026-12-01"


def of(*languages: str) -> list[Any]:
    return [pytest.param(one, id=one.place) for one in SNIPPETS if one.language in languages]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would see of this repository, in a repository of one commit."""
    tree = tmp_path_factory.mktemp("pristine") / "nightcap"
    copy_tree(ROOT, tree)
    return tree


@pytest.mark.parametrize("name", SECTIONS)
def test_commands_print_what_the_document_shows(name: str, pristine: Path, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(pristine, tmp_path / "nightcap"))
    # Expiry dates of the example are judged as of one day, so that the documents do not go stale by themselves.
    shim = tmp_path / "bin/nightcap"
    shim.parent.mkdir()
    installed = Path(sys.executable).parent
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(str(installed / "nightcap"))} --today {TODAY} "$@"\n')
    shim.chmod(0o755)
    path = os.pathsep.join([str(shim.parent), str(installed), os.environ["PATH"]])
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "NIGHTCAP_", "PYTEST_"))},
        "PATH": path,
        "HOME": str(tmp_path),
        "NIGHTCAP_LOCKS": str(tmp_path / "locks"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    for command, output, code in run(SECTIONS[name], tree, environment):
        shown = f"{command.snippet.place}: $ {command.text}\n{output}\nexit code {code}"
        assert code == command.exit_code, shown
        assert fits(command.output, output), f"{shown}\n--- but the document shows:\n{command.output}"


def test_blocks_that_do_not_run_are_known_and_say_why() -> None:
    """`bash` blocks never run, for the reason that the document gives; everything else is `console`."""
    found = {(f"{one.path}#{one.section}", one.notes.get("not run", "")) for one in SNIPPETS if one.language == "bash"}
    assert found == NOT_RUN
    assert [one.place for one in SNIPPETS if "not run" in one.notes and one.language != "bash"] == []


def test_languages_are_those_that_are_checked() -> None:
    unchecked = {
        one.place: one.language
        for one in SNIPPETS
        if one.language not in {"console", "bash", "yaml", "python", "text", "json", "jinja"}
        or (one.language == "jinja" and not one.notes)
    }
    assert unchecked == {}


@pytest.mark.parametrize("snippet", [one for one in SNIPPETS if "excerpt of" in one.notes], ids=lambda one: one.place)
def test_excerpts_stand_in_their_files(snippet: Snippet) -> None:
    file = snippet.notes["excerpt of"]
    assert is_excerpt(snippet.text, (ROOT / file).read_text(encoding="utf-8")), f"{snippet.place}: not in {file}"


@pytest.mark.parametrize("snippet", of("yaml"))
def test_yaml_is_a_spec_or_a_part_of_one(snippet: Snippet) -> None:
    value = read(snippet.text, snippet.place).value
    if not snippet.notes.get("excerpt of", "").startswith((".github", "examples/inference-engine/.github")):
        assert isinstance(value, dict), snippet.place
        assert _fields_of_a_model(value) or _entries(value), f"{snippet.place} is no part of a spec"


def _fields_of_a_model(value: dict[str, Any]) -> bool:
    """True when some model has all these fields and takes their values."""
    for model in MODELS:
        if value.keys() <= model.model_fields.keys():
            fields = {name: TypeAdapter(model.model_fields[name].rebuild_annotation()) for name in value}
            try:
                for name, adapter in fields.items():
                    adapter.validate_python(value[name])
            except ValidationError:
                continue
            return True
    return False


def _entries(value: dict[str, Any]) -> bool:
    """True for jobs, pools or suites by name."""
    return all(isinstance(entry, dict) and _fields_of_a_model(entry) for entry in value.values())


@pytest.mark.parametrize("snippet", of("python"))
def test_python_is_valid(snippet: Snippet) -> None:
    ast.parse(snippet.text, snippet.place)


@pytest.mark.parametrize("snippet", of("bash"))
def test_bash_is_valid_and_its_commands_exist(snippet: Snippet) -> None:
    subprocess.run(["bash", "-n", "-c", snippet.text], check=True)
    for line in snippet.text.replace("\\\n", "").splitlines():
        for words in _calls(shlex.split(line, comments=True)):
            _check_call(words)


def _calls(words: list[str]) -> list[list[str]]:
    """The simple commands of a line."""
    ends = {"&&", "||", ";", "|"}
    return [list(part) for is_end, part in groupby(words, ends.__contains__) if not is_end]


def _check_call(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets), words
    if words[0] == "nightcap":
        context = click.Context(cli, info_name="nightcap")
        _, rest, _ = cli.make_parser(context).parse_args(words[1:])
        name, command, rest = cli.resolve_command(context, rest)
        assert command is not None
        command.make_parser(click.Context(command, info_name=name)).parse_args(rest)
    if words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None, words
        assert [word for word in words[3:] if word.endswith(".py") and not (ROOT / word).is_file()] == []


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: str) -> None:
    prose = re.sub(r"^```.*?^```", "", TEXTS[path], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (ROOT / path).parent / unquote(file) if file else ROOT / path
        assert found.exists(), f"{path}: {target} leads nowhere"
        if anchor:
            assert anchor in _anchors(found.read_text(encoding="utf-8")), f"{path}: {target}: no such heading"


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
