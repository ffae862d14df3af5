"""Reads the specs of a repository: `workflows/runners.yml` and every other `workflows/*.yml`.

`load` returns `Specs` with defaults applied, or raises one `SpecError` with every problem of every file. What
is broken is taken out and the rest is judged on, so that a typo in one job hides no bad pool in another. What
follows only from a problem already reported is not reported again.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ci.gha import yaml_reader
from ci.gha.yaml_reader import Document, YamlError
from ci.spec.checks import Checked, Finding, check_fleet, check_workflow
from ci.spec.models import NAME_PATTERN, PATTERN_WORDS, Fleet, Pool, Workflow
from ci.spec.problems import Problem, SpecError, shown
from ci.spec.violations import Violation, missing_values, violations

FOLDER = "workflows"
FLEET_FILE = "runners.yml"
QUARANTINE_FILE = "quarantine.yml"
OTHER_FILES = frozenset({FLEET_FILE, QUARANTINE_FILE, "actions.lock.yml"})
"""Files of the folder that are no workflows."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Specs:
    """All specs of a repository; `documents` holds the text behind each workflow: source and lines."""

    fleet: Fleet
    workflows: dict[str, Workflow]
    documents: Mapping[str, Document]

    def problem(self, workflow: str, path: yaml_reader.Path, message: str, fix: str = "") -> Problem:
        """A problem at a place of a workflow's spec, such as `("jobs", "a", "suites", 0)`."""
        return _problem(self.documents[workflow], Finding(path, message, fix))


def load(root: Path, *, today: date) -> Specs:
    """The specs under `root`; `today` decides what has expired. Raises SpecError with all problems."""
    if not (root / FOLDER).is_dir():
        raise SpecError([Problem(FOLDER, 0, "", "no such folder", "run `nightcap init` to write first specs")])
    problems = [*_stray_files(root / FOLDER)]
    fleet, pools = _load_fleet(root, problems)
    workflows: dict[str, Workflow] = {}
    documents: dict[str, Document] = {}
    for path in sorted((root / FOLDER).glob("*.yml")):
        if path.name in OTHER_FILES:
            continue
        document = _read(path, problems)
        workflow = _judge(document, pools, today, problems) if document else None
        if document and workflow:
            workflows[path.stem], documents[path.stem] = workflow.with_defaults(), document
    problems += _same_titles(workflows, documents)
    if not workflows and not problems:
        fix = "run `nightcap init` to write a first one"
        problems.append(Problem(FOLDER, 0, "", f"no workflow beside {FLEET_FILE}", fix))
    if problems or fleet is None:
        raise SpecError(problems)
    return Specs(fleet, workflows, documents)


def load_file(path: Path, model: type[M]) -> tuple[Document, M]:
    """A file of the folder that is no workflow, and its text. Raises SpecError with all problems."""
    problems: list[Problem] = []
    document = _read(path, problems)
    parsed, found, _ = _parse(document, model) if document else (None, [], set())
    if document is None or parsed is None or found:
        raise SpecError([*problems, *found])
    return document, parsed


def field_name(path: Iterable[str | int]) -> str:
    """A place in a spec as a person writes it: `jobs.attention.suites[1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[\w.-]{1,100}", step, re.ASCII) else shown(step)
            text += f".{name}" if text else name
    return text


def _problem(document: Document, finding: Finding) -> Problem:
    line = document.line(finding.path)
    return Problem(document.source, line, field_name(finding.path), finding.message, finding.fix)


def _stray_files(folder: Path) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        where = f"{FOLDER}/{path.name}"
        if path.suffix == ".yaml":
            yield Problem(where, 0, "", "not read: specs end in .yml", f"rename it to {path.stem}.yml")
        elif path.suffix == ".yml" and not re.fullmatch(NAME_PATTERN, path.stem):
            yield Problem(where, 0, "", "not a file name for a spec", PATTERN_WORDS[NAME_PATTERN])


def _load_fleet(root: Path, problems: list[Problem]) -> tuple[Fleet | None, Mapping[str, Pool | None]]:
    """The fleet, and every pool that its file names: None for those too broken to judge jobs by."""
    path = root / FOLDER / FLEET_FILE
    if not path.is_file():
        fix = "it names the repository and its pools of runners; `nightcap init` writes a first one"
        problems.append(Problem(f"{FOLDER}/{FLEET_FILE}", 0, "", "no such file", fix))
        return None, _AnyPool()
    document = _read(path, problems)
    if document is None:
        return None, _AnyPool()
    fleet, found, reported = _parse(document, Fleet)
    problems += found
    if fleet:
        problems += _new(document, check_fleet(fleet), reported)
    written = document.value.get("pools")
    if not isinstance(written, dict) or not written:
        return fleet, _AnyPool()
    return fleet, {name: fleet.pools.get(name) if fleet else None for name in written}


class _AnyPool(dict[str, Pool | None]):
    """The pools of a fleet that cannot be read: every name may be one of them."""

    def __contains__(self, name: object) -> bool:
        return True


def _read(path: Path, problems: list[Problem]) -> Document | None:
    """The mapping in a file, or None with the reason among `problems`."""
    source = f"{FOLDER}/{path.name}"
    data = path.read_bytes()
    try:
        document = yaml_reader.read(data.decode("utf-8"), source)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        problems.append(Problem(source, line, "", message, "save the file as UTF-8"))
        return None
    except YamlError as error:
        problems += [Problem(source, line, "", message) for line, message in error.problems]
        return None
    if isinstance(document.value, dict):
        return document
    if document.value is None:
        problems.append(Problem(source, 0, "", "the file is empty", "write the spec, or delete the file"))
    else:
        message = f"the file holds {shown(document.value)}, not fields with values"
        problems.append(Problem(source, 1, "", message, "begin with `title: ...`"))
    return None


def _parse(document: Document, model: type[M]) -> tuple[M | None, list[Problem], set[yaml_reader.Path]]:
    """The model of a document without its broken parts, what is wrong with them, and where.

    None if what is left is no model. Ends, because each round takes something out.
    """
    value = document.value
    problems: list[Problem] = []
    reported: set[yaml_reader.Path] = set()
    found = list(missing_values(value, model))
    while True:
        problems += _new(document, (violation.finding for violation in found), reported)
        reported |= {violation.finding.path for violation in found}
        if any(not violation.broken for violation in found):
            return None, problems, reported
        value = _without(value, found)
        try:
            return model.model_validate(value), problems, reported
        except ValidationError as error:
            found = violations(error, model)


def _without(value: Any, found: list[Violation]) -> Any:
    """A copy of `value` without the broken parts."""
    value = copy.deepcopy(value) if found else value
    for path in sorted({violation.broken for violation in found}, key=_late_items_first):
        inside = value
        for step in path[:-1]:
            if not _holds(inside, step):
                break
            inside = inside[step]
        else:
            if _holds(inside, path[-1]):
                del inside[path[-1]]
    return value


def _late_items_first(path: yaml_reader.Path) -> tuple[tuple[int, str], ...]:
    return tuple((-step, "") if isinstance(step, int) else (0, step) for step in path)


def _holds(inside: Any, step: str | int) -> bool:
    if isinstance(inside, list):
        return isinstance(step, int) and step < len(inside)
    return isinstance(inside, dict) and step in inside


def _is_covered(path: yaml_reader.Path, reported: set[yaml_reader.Path]) -> bool:
    """Whether a part of what stands at `path`, or what it is a part of, is reported already."""
    return any(path[: len(other)] == other[: len(path)] for other in reported)


def _new(document: Document, findings: Iterable[Finding], reported: set[yaml_reader.Path]) -> Iterator[Problem]:
    for finding in findings:
        if not _is_covered(finding.path, reported):
            yield _problem(document, finding)


def _judge(
    document: Document, pools: Mapping[str, Pool | None], today: date, problems: list[Problem]
) -> Workflow | None:
    """The workflow in a document, with whatever is wrong added to `problems`."""
    workflow, found, reported = _parse(document, Workflow)
    problems += found
    if workflow:
        keys = tuple(document.value["jobs"])
        checked = Checked(workflow, workflow.with_defaults(), pools, keys, today)
        problems += _new(document, check_workflow(checked), reported)
    return workflow


def _same_titles(workflows: Mapping[str, Workflow], documents: Mapping[str, Document]) -> Iterator[Problem]:
    """GitHub's required checks match by name alone, across workflows."""
    first: dict[str, str] = {}
    for name, workflow in workflows.items():
        taken = first.setdefault(workflow.title.lower(), name)
        if taken != name:
            message = f"{shown(workflow.title)} is also the title of {documents[taken].source}"
            fix = "checks are told apart by title and job alone; choose another title"
            yield _problem(documents[name], Finding(("title",), message, fix))
