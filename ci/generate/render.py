"""specs + templates + lock of actions -> the text of every generated file. Pure: no clock, no environment, no network.

Templates use ERB's delimiters, which meet neither `${{ }}` nor `${#x}` nor `[[ ]]` of the shell, and StrictUndefined.
Each value passes the filter `yaml` (a scalar or a flow collection on one line) or `block(indent)` (a text of several
lines).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from ci.generate.values import job_values, workflow_values
from ci.gha.yaml_reader import YamlError, read
from ci.gha.yaml_writer import block, scalar
from ci.spec import schema
from ci.spec.loader import Specs
from ci.spec.problems import Problem, SpecError, did_you_mean

MARK = "Made by nightcap from"
"""Every generated file bears it in one of its first lines; only such a file is ever overwritten or removed."""
LOCK = "workflows/actions.lock.yml"
ACTION = ".github/actions/nightcap/action.yml"
_SHA = re.compile(r"[0-9a-f]{40}")
_PACKAGED = Path(__file__).parent / "packaged"
_CHECKOUT = Path(__file__).parents[2]
_LINTER_CONFIG = """\
# {header}
self-hosted-runner:
  labels: {labels}
paths:
  .github/workflows/*.yml:
    ignore:
      # GPUs are machines of one's own. Pull requests, and so forks, cannot ask for them: the specs' checks refuse it.
      - runs on a self-hosted runner
      # Older GitHub Enterprise servers and act do not know `$/`, and no step before it writes into the checkout.
      - is looked up in the workspace at run time
      # An environment with protection rules would hold back a nightly until somebody approves it.
      - has no "environment:"
"""


@dataclass(frozen=True)
class Generated:
    """One file that generation writes."""

    path: str
    text: str
    jobs: int = 0

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")


def render(specs: Specs, root: Path) -> list[Generated]:
    """All generated files, sorted by path. Raises SpecError for an unknown template or action."""
    environment = _environment(root, _lock(root))
    files = [_workflow(environment, specs, name) for name in specs.workflows]
    header = _header("workflows/runners.yml and templates/action.yml.j2")
    text = _text(environment, "action.yml.j2", header=header, install=specs.fleet.install.rstrip("\n"))
    files.append(Generated(ACTION, text))
    files.append(Generated(".github/actionlint.yaml", _linter_config(specs)))
    schemas = schema.render(f"{MARK} its models of the specs, for editors. `nightcap generate` writes it anew.")
    files.extend(Generated(f"{schema.FOLDER}/{name}", text) for name, text in schemas.items())
    return sorted(files, key=lambda file: file.path)


def packaged(name: str) -> Path:
    """A file or folder that ships with the toolkit: in a wheel beside this module, in a checkout at its place."""
    shipped = _PACKAGED / name
    return shipped if shipped.exists() else _CHECKOUT / (name if name == "templates" else f"workflows/{name}")


def _workflow(environment: Environment, specs: Specs, name: str) -> Generated:
    workflow = specs.workflows[name]
    template = f"{workflow.template}.yml.j2"
    known = [one.removesuffix(".yml.j2") for one in environment.list_templates() if one != "action.yml.j2"]
    if workflow.template not in known:
        fix = did_you_mean(workflow.template, known) or f"use one of {', '.join(known)}, or add templates/{template}"
        raise SpecError([specs.problem(name, ("template",), f"unknown template {workflow.template!r}", fix)])
    values = workflow_values(name, workflow, specs.fleet)
    jobs = job_values(workflow, specs.fleet)
    header = _header(f"workflows/{name}.yml and templates/{template}")
    text = _text(environment, template, header=header, workflow=values, jobs=jobs)
    return Generated(f".github/workflows/{name}.yml", text, len(jobs))


def _text(environment: Environment, template: str, **values: object) -> str:
    """The text of a template. Raises SpecError for what its author did wrong, with the template's line."""
    try:
        return environment.get_template(template).render(values)
    except (TemplateError, TypeError, ValueError) as error:
        frames = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename.endswith(template)]
        line = getattr(error, "lineno", None) or (frames[-1] if frames else 0)
        raise SpecError([Problem(f"templates/{template}", line or 0, "", str(error))]) from error


def _header(sources: str) -> str:
    return f"{MARK} {sources}. Edit there, then run `nightcap generate`."


def _environment(root: Path, lock: Mapping[str, str]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([root / "templates", packaged("templates")]),
        undefined=StrictUndefined,
        variable_start_string="<%=",
        variable_end_string="%>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<%#",
        comment_end_string="%>",
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["yaml"] = scalar
    environment.filters["block"] = block

    def action(name: str) -> str:
        if name not in lock:
            fix = did_you_mean(name, lock) or f"add a line `{name}: {{sha: ..., version: ...}}`"
            raise SpecError([Problem(LOCK, 0, name, "this action is used by a template but not locked", fix)])
        return lock[name]

    environment.globals["action"] = action
    return environment


def _lock(root: Path) -> dict[str, str]:
    """Action -> `action@SHA # version`, read from the lock file."""
    path = root / LOCK
    if not path.is_file():
        raise SpecError([Problem(LOCK, 0, "", "the lock of actions is missing", "nightcap init writes one")])
    try:
        document = read(path.read_text(encoding="utf-8"), LOCK)
    except UnicodeDecodeError as error:
        raise SpecError([Problem(LOCK, 0, "", "is not UTF-8", "save the file as UTF-8")]) from error
    except YamlError as error:
        raise SpecError(Problem(LOCK, line, "", message) for line, message in error.problems) from error
    entries = document.value if isinstance(document.value, dict) else {}
    problems: list[Problem] = []
    lock: dict[str, str] = {}
    for name, entry in entries.items():
        sha, version = (entry.get("sha"), entry.get("version")) if isinstance(entry, dict) else (None, None)
        if isinstance(sha, str) and _SHA.fullmatch(sha) and isinstance(version, str):
            lock[name] = f"{name}@{sha} # {version}"
        else:
            problems.append(
                Problem(LOCK, document.line((name,)), name, "needs `sha` (40 hexadecimal digits, quoted) and `version`")
            )
    if problems or not lock:
        raise SpecError(problems or [Problem(LOCK, 0, "", "holds no action")])
    return lock


def _linter_config(specs: Specs) -> str:
    """actionlint's configuration: the labels of the pools, so that a linter knows a typo from a runner, and waivers."""
    labels = {label for pool in specs.fleet.pools.values() if not pool.hosted for label in pool.labels}
    return _LINTER_CONFIG.format(
        header=_header("workflows/runners.yml"), labels=json.dumps(sorted(labels - {"self-hosted"}))
    )
