"""Reading test files: what pytest is certain to collect, the suites, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.suites.discover import discover
from ci.suites.testfile import StaticTest, TestFile, read_source


def read(text: str, path: str = "test_a.py") -> TestFile:
    return read_source(path, dedent(text).encode())


def suites(file: TestFile) -> dict[str, tuple[str, ...]]:
    return {test.id.partition("::")[2]: test.suites for test in file.tests}


def test_for_a_test_the_closest_suite_marker_wins_and_those_of_one_level_all_apply() -> None:
    file = read("""
        import pytest
        pytestmark = [pytest.mark.suite("module", gpus=8, min_sm=90, est="90s"), pytest.mark.slow]

        def test_plain(): ...

        @pytest.mark.suite("one")
        @pytest.mark.suite("two", est="2m")
        async def test_two(): ...

        @pytest.mark.suite("class")
        class TestC:
            def test_of_class(self): ...

            @pytest.mark.suite("method")
            def test_own(self): ...
        """)
    assert suites(file) == {
        "test_plain": ("module",),
        "test_two": ("one", "two"),
        "TestC::test_of_class": ("class",),
        "TestC::test_own": ("method",),
    }
    module = file.uses[0]
    assert (module.suite, module.line, module.gpus, module.min_sm, module.est) == ("module", 3, 8, 90, 90.0)
    assert not file.problems


def test_marks_of_module_class_base_and_function_add_up_and_named_marks_are_followed() -> None:
    file = read("""
        from pytest import mark
        needs_gpu = mark.skipif(True, reason="")
        pytestmark = mark.module

        @mark.base
        class TestBase:
            def test_inherited(self): ...

        @needs_gpu
        class TestC(TestBase):
            pytestmark = [mark.inside]

            @mark.parametrize("x", [1])
            def test_a(self, x): ...
        """)
    marks = {test.id: test.marks for test in file.tests}
    assert marks["test_a.py::TestC::test_a"] == ("base", "inside", "module", "parametrize", "skipif")
    assert marks["test_a.py::TestBase::test_inherited"] == ("base", "module")
    assert marks["test_a.py::TestC::test_inherited"] == ("base", "inside", "module", "skipif")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("suite(NAME)", "name=NAME cannot be read without running the file"),
        ('suite(f"a-{NAME}")', "cannot be read"),
        ('suite("a" + NAME)', "cannot be read"),
        ('suite("a", gpus=count())', "gpus=count() cannot be read"),
        ("suite(*NAMES)", "has unpacked arguments"),
        ('suite("a", **NEEDS)', "has unpacked arguments"),
        ('suite("a", gpu=1)', "has no argument 'gpu'"),
        ('suite("a", "b")', "takes 1 positional argument"),
        ('suite("a", name="b")', "has 'name' twice"),
        ('suite("a", est=90)', "est=90: a duration"),
        ('suite("a", est="soon")', "not a duration"),
        ('suite("a", gpus=True)', "gpus=True is no number"),
        ('suite("a", min_sm=9.0)', "min_sm=9.0 is no SM version"),
        ('suite("a b")', "'a b' is no suite name"),
        ("suite", "names no suite"),
        ("suite()", "names no suite"),
    ],
)
def test_a_marker_that_cannot_be_read_is_a_problem_with_its_line(call: str, message: str) -> None:
    file = read(f"import pytest\n\n@pytest.mark.{call}\ndef test_a(): ...\n")
    (problem,) = file.problems
    assert (problem.file, problem.line, problem.field) == ("test_a.py", 3, "suite")
    assert message in problem.message
    assert problem.fix
    assert not file.uses


@pytest.mark.parametrize(
    "text",
    [
        "if GPU:\n    pytestmark = pytest.mark.suite('a')\ndef test_a(): ...",
        "try:\n    @pytest.mark.suite('a')\n    def test_a(): ...\nexcept E:\n    raise\n",
        "@pytest.mark.parametrize('x', [param(1, marks=pytest.mark.suite('a'))])\ndef test_a(x): ...\n",
        "if GPU:\n    register_cuda_ci(est_time=1, suite='a')\n",
    ],
)
def test_a_suite_that_depends_on_how_the_file_runs_is_a_problem(text: str) -> None:
    (problem,) = read(text).problems
    assert "run" in problem.message


def test_the_same_suite_twice_on_one_level_is_a_problem() -> None:
    (problem,) = read(
        "pytestmark = [pytest.mark.suite('a', gpus=1), pytest.mark.suite('a')]\ndef test_a(): ..."
    ).problems
    assert "'a' is named twice" in problem.message


def test_a_marker_in_a_file_without_tests_is_a_problem() -> None:
    (problem,) = read("pytestmark = pytest.mark.suite('a')\ndef tst_typo(): ...").problems
    assert (problem.line, problem.message) == (1, "names suite 'a', but pytest would find no test here")
    assert not read("register_cuda_ci(est_time=1, suite='a')\nmain()").problems, "a plain script"


def test_registration_calls_of_other_engines_name_suites() -> None:
    file = read("""
        register_cuda_ci(est_time=249.5, suite="nightly-8-gpu", nightly=True)
        register_amd_ci(5, "amd-1")
        register_cpu_ci(est_time=60, stage="base-b", runner_config="4-gpu-b200")
        ci.register_npu_ci(est_time=1, suite="npu", disabled="hangs")

        class LoadTest(CustomTestCase):
            def test_load(self): ...
        """)
    assert [(use.suite, use.est) for use in file.uses] == [
        ("nightly-8-gpu", 249.5),
        ("amd-1", 5.0),
        ("base-b-test-4-gpu-b200", 60.0),
        ("npu", 1.0),
    ]
    assert suites(file) == {"LoadTest::test_load": ("amd-1", "base-b-test-4-gpu-b200", "nightly-8-gpu")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("est_time=EST, suite='a'", "est_time=EST cannot be read"),
        ("suite='a'", "est_time=None is no number"),
        ("est_time=1", "None is no suite name"),
        ("est_time=1, suite='a', stage='b'", "must name its suite in one way"),
        ("est_time=1, suite='a', disabled=True", "disabled=True is no reason"),
    ],
)
def test_a_registration_that_cannot_be_read_is_a_problem(arguments: str, message: str) -> None:
    (problem,) = read(f"register_cuda_ci({arguments})").problems
    assert message in problem.message


COLLECTED_AND_NOT = """
import dataclasses, enum, unittest
import pytest

def test_plain(): ...
def helper(): ...
def testing_prefix_without_underscore(): ...

@pytest.fixture
def test_data(): return 1

@pytest.mark.parametrize("x", [1, 2])
def test_params(x): ...

def test_deleted(): ...
del test_deleted

def test_rebound(): ...
test_rebound = None

class TestPlain:
    def test_a(self): ...
    @staticmethod
    def test_static(): ...
    @property
    def test_property(self): return 1
    class TestNested:
        def test_b(self): ...
    class Helper:
        def test_c(self): ...

class TestWithInit:
    def __init__(self): ...
    def test_a(self): ...

@dataclasses.dataclass
class TestRecord:
    x: int = 0
    def test_a(self): ...

class TestOff:
    __test__ = False
    def test_a(self): ...

class TestOffToo(TestOff):
    def test_b(self): ...

class TestOnAgain(TestOff):
    __test__ = True
    def test_c(self): ...

class CustomTestCase(unittest.TestCase):
    pass

class Anything(CustomTestCase):
    def test_a(self): ...
    def helper(self): ...

class Derived(Anything):
    def test_b(self): ...
    test_a = None

class Mixin:
    def test_mixed(self): ...

class TestMixed(Mixin, unittest.TestCase):
    def test_own(self): ...

class Gone(unittest.TestCase):
    def test_a(self): ...
del Gone
"""


def test_planned_ids_are_exactly_those_that_pytest_collects(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(COLLECTED_AND_NOT)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_sample.py",
    ]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    collected = {line.partition("[")[0] for line in shown.splitlines() if "::" in line}
    (file,) = discover(tmp_path).files
    assert {test.id for test in file.tests} == collected
    assert len(collected) > 10


@pytest.mark.parametrize(
    "text",
    [
        "if X:\n    def test_a(): ...",
        "class TestA:\n    @parameterized.expand([1])\n    def test_a(self, x): ...",
        "@parameterized_class('x', [1])\nclass TestA(unittest.TestCase):\n    def test_a(self): ...",
        "class TestA(TestCase):\n    def test_a(self, device): ...\ninstantiate_device_type_tests(TestA)",
        "from other import TestBase",
        "from other import *",
        "class TestA(ImportedMixin, TestCase): ...",
        "test_made = make()",
    ],
)
def test_tests_whose_ids_are_only_known_at_run_time_are_not_planned_but_noted(text: str) -> None:
    file = read(text)
    assert file.tests == ()
    assert file.dynamic


def test_a_script_that_imports_everything_stays_a_script() -> None:
    assert not read_source("run_all.py", b"from settings import *\nmain()\n").dynamic


def test_a_file_of_helpers_holds_no_tests() -> None:
    file = read("from unittest import TestCase\nclass Helper: ...\ndef make(): ...\n")
    assert file == TestFile("test_a.py")


@pytest.mark.parametrize("source", [b"def test_(:\n", b"x = 1\0", b"# coding: nonsense\n", b"\xff\xfe\n", b"(" * 999])
def test_a_file_that_is_not_python_is_a_problem_and_the_others_are_read(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "test_bad.py").write_bytes(source)
    (tmp_path / "test_good.py").write_text("def test_a(): ...")
    found = discover(tmp_path)
    (problem,) = found.problems
    assert problem.file == "test_bad.py"
    assert "not valid Python" in problem.message
    assert [test.id for test in found.files[1].tests] == ["test_good.py::test_a"]


def test_hidden_folders_environments_and_build_output_are_not_entered(tmp_path: Path) -> None:
    kept = ["a_test.py", "deep/er/test_b.py", "test_c.py"]
    skipped = [
        ".git/test_a.py",
        "build/test_a.py",
        "node_modules/x/test_a.py",
        "my-env/lib/test_a.py",
        "deep/helper.py",
    ]
    for path in kept + skipped:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("def test_a(): ...")
    (tmp_path / "my-env/pyvenv.cfg").touch()
    (tmp_path / "test_folder.py").mkdir()
    (tmp_path / "test_broken_link.py").symlink_to("nowhere")
    assert [file.path for file in discover(tmp_path).files] == kept


def test_reading_runs_nothing_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(3)\ndef test_a(): ...")
    assert len(discover(tmp_path).files[0].tests) == 1
    assert not (tmp_path / "ran").exists()


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_a_value(text: str) -> None:
    file = read_source("test_a.py", text.encode(errors="surrogatepass"))
    assert all(isinstance(test, StaticTest) for test in file.tests)
