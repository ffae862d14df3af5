"""The catalogue: suites from markers, globs and manifests, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.spec.models import Allowance, SuiteDecl
from ci.suites.catalogue import Catalogue, catalogue
from ci.suites.discover import discover

ALLOWED = Allowance.model_validate({"reason": "no machine yet", "expires": "2999-01-01"})


def tree(root: Path, **files: str) -> Path:
    """Write `path__to__name` as path/to/name.py below `root`."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def build(root: Path, **declared: SuiteDecl) -> Catalogue:
    return catalogue(declared, discover(root), root, source="workflows/n.yml")


def messages(built: Catalogue) -> list[str]:
    return [f"{problem.file}: {problem.field}: {problem.message}" for problem in built.problems]


def test_a_suite_of_markers_has_the_files_the_tests_and_the_highest_needs(tmp_path: Path) -> None:
    mark = "import pytest\npytestmark = pytest.mark.suite('a', gpus={}, min_sm={}, est='{}')\ndef test_x(): ..."
    tree(
        tmp_path,
        test_one=mark.format(1, 80, "90s"),
        sub__test_two=mark.format(8, None, "2m") + "\n@pytest.mark.suite('b')\ndef test_other(): ...",
        test_off="register_cuda_ci(est_time=1, suite='a', disabled='hangs')\ndef test_y(): ...",
    )
    built = build(tmp_path)
    assert not built.problems
    assert list(built.suites) == ["a", "b"]
    suite = built.suites["a"]
    assert (suite.kind, suite.gpus, suite.min_sm) == ("marker", 8, 80)
    shown = [(file.path, [test.id for test in file.tests], file.est, file.gpus) for file in suite.files]
    assert shown == [
        ("sub/test_two.py", ["sub/test_two.py::test_x"], 120.0, 8),
        ("test_one.py", ["test_one.py::test_x"], 90.0, 1),
    ]


def test_the_expected_time_of_a_file_is_that_of_the_markers_its_tests_go_by(tmp_path: Path) -> None:
    own = "import pytest\npytestmark = pytest.mark.suite('a', est='1h')\n"
    part = "@pytest.mark.suite('a', est='{}')\ndef test_{}(): ...\n"
    tree(
        tmp_path,
        test_all_own=own + part.format("10s", "x") + part.format("20s", "y"),
        test_one_unknown=own + "@pytest.mark.suite('a')\ndef test_x(): ...\n" + part.format("5s", "y"),
    )
    assert [file.est for file in build(tmp_path).suites["a"].files] == [30.0, None]


def test_globs_take_files_of_any_name_and_scripts_have_no_tests(tmp_path: Path) -> None:
    tree(
        tmp_path,
        kernels__check_a="def test_a(): ...",
        kernels__run_b="print()",
        kernels__deep__c="def test_c(): ...",
    )
    (tmp_path / "kernels/bench.sh").write_text("true")
    decl = SuiteDecl(files=["kernels/*.py", "kernels/*.sh", "kernels/deep/**/*.py"], gpus=2, min_sm=90, est="40s")
    built = build(tmp_path, kernels=decl)
    assert not built.problems
    suite = built.suites["kernels"]
    assert [(file.path, file.kind, len(file.tests)) for file in suite.files] == [
        ("kernels/bench.sh", "script", 0),
        ("kernels/check_a.py", "pytest", 1),
        ("kernels/deep/c.py", "pytest", 1),
        ("kernels/run_b.py", "script", 0),
    ]
    assert {(file.gpus, file.min_sm, file.est) for file in suite.files} == {(2, 90, 40.0)}


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        (["nowhere/*.py"], "'nowhere/*.py' matches no file"),
        (["*.py", "a.py"], "a.py is listed twice, by '*.py' and 'a.py'"),
        (["*.py", "*.py"], "a.py is listed twice"),
    ],
)
def test_a_glob_that_matches_nothing_or_twice_is_a_problem(tmp_path: Path, globs: list[str], message: str) -> None:
    tree(tmp_path, a="print()")
    (problem,) = build(tmp_path, s=SuiteDecl(files=globs)).problems
    assert (problem.file, problem.field) == ("workflows/n.yml", "suites.s.files")
    assert message in problem.message


def test_an_external_command_without_a_manifest_is_one_item_with_the_name_of_the_suite(
    tmp_path: Path,
) -> None:
    built = build(tmp_path, perf=SuiteDecl(command="./perf.sh", gpus=8, est="1h"))
    (item,) = built.suites["perf"].files
    assert (item.path, item.kind, item.est, item.gpus) == ("perf", "command", 3600.0, 8)


def test_the_items_of_an_external_command_are_the_tests_of_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"s": {"b.py": 2, "a.py": 1.5}, "other": {"c.py": 1}}))
    built = build(tmp_path, s=SuiteDecl(command="run", manifest="m.json"))
    assert not built.problems
    assert [(item.path, item.est) for item in built.suites["s"].files] == [("a.py", 1.5), ("b.py", 2.0)]


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (None, "cannot be read: No such file", ""),
        ("{", "cannot be read", ""),
        ("[]", "lists no test for suite 'nightly-1'", "add its tests"),
        ('{"nightly-2": {"a": 1}}', "lists no test for suite 'nightly-1'", "did you mean 'nightly-2'?"),
        ('{"nightly-1": {}}', "lists no test for suite 'nightly-1'", "say allow_empty"),
        ('{"nightly-1": ["a"]}', "lists no test for suite 'nightly-1'", ""),
        ('{"nightly-1": {"a": "1"}}', "'a': '1' is no test with a number", ""),
        ('{"nightly-1": {"a": -1}}', "'a': -1 is no test with a number", ""),
        ('{"nightly-1": {"a": NaN}}', "NaN is no number", ""),
        ('{"nightly-1": {"a\\nb": 1}}', "is no test with a number", ""),
        ('{"nightly-1": {"a": 1, "a": 2}}', "'a' is listed twice", ""),
    ],
)
def test_a_manifest_that_does_not_list_the_suite_is_a_problem(
    tmp_path: Path, text: str | None, message: str, fix: str
) -> None:
    if text is not None:
        (tmp_path / "m.json").write_text(text)
    built = build(tmp_path, **{"nightly-1": SuiteDecl(command="run", manifest="m.json")})
    (problem,) = built.problems
    assert problem.file == "m.json"
    assert message in problem.message
    assert fix in problem.fix


def test_an_allowed_empty_suite_is_there_and_no_problem(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    built = build(
        tmp_path,
        external=SuiteDecl(command="run", manifest="m.json", allow_empty=ALLOWED),
        globs=SuiteDecl(files=["x/*.py"], allow_empty=ALLOWED),
        marker=SuiteDecl(allow_empty=ALLOWED),
    )
    assert not built.problems
    assert {name: suite.files for name, suite in built.suites.items()} == {
        "external": (),
        "globs": (),
        "marker": (),
    }


def test_a_declaration_without_files_adds_needs_to_the_suite_that_tests_name(tmp_path: Path) -> None:
    tree(tmp_path, test_a="register_cuda_ci(est_time=9, suite='s')\ndef test_a(): ...")
    suite = build(tmp_path, s=SuiteDecl(gpus=8, min_sm=100, est="1h")).suites["s"]
    assert (suite.kind, suite.gpus, suite.min_sm, suite.files[0].est) == ("marker", 8, 100, 9.0)


def test_a_suite_declared_with_files_and_named_by_tests_is_a_problem(tmp_path: Path) -> None:
    tree(tmp_path, test_a="import pytest\npytestmark = pytest.mark.suite('s')\ndef test_a(): ...")
    assert messages(build(tmp_path, s=SuiteDecl(files=["test_a.py"]))) == [
        "workflows/n.yml: suites.s: is declared here with files or a command, and test_a.py:2 names the same suite"
    ]


def test_problems_of_the_tree_are_among_those_of_the_catalogue(tmp_path: Path) -> None:
    tree(tmp_path, test_a="def test_(:  # suite", kernels__bad="x = (")
    built = build(tmp_path, s=SuiteDecl(files=["kernels/*.py"]))
    assert [problem.file for problem in built.problems] == ["kernels/bad.py", "test_a.py"]


def test_a_file_that_is_no_python_and_names_no_suite_stops_no_night(tmp_path: Path) -> None:
    tree(tmp_path, test_template="{% if x %}")
    assert build(tmp_path).problems == ()
