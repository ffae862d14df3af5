"""How long generation takes: `python -m benchmarks.generate [--json FILE]`.

Whole processes on repositories of 1, 10 and 100 workflows with 5 jobs each, start-up against a bare import of click and
yaml, and milliseconds a job beside two peers on the same 500 jobs in the same run: ghagen (a generator in Python that
checks models), and Jinja with PyYAML (no checks at all). All numbers are medians; ratios are what to quote.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOBS = 5
RUNNERS = "repository: acme/engine\npools:\n" + "".join(
    f"  pool-{index}: {{labels: [self-hosted, pool-{index}], gpus: 8, sm: 90, timeout: 8h}}\n" for index in range(JOBS)
)
JOB = """\
  job-{number}:
    pool: pool-{index}
    suites: [suite-{index}]
    tags: [perf, tag-{index}]
    timeout: 2h
    file_timeout: 40m
"""
HEAD = """\
title: Nightly {n}
template: nightly
triggers: {{schedule: {{cron: '17 {hour} * * *'}}, dispatch: {{}}}}
jobs:
"""

JINJA = """\
import sys, yaml
from pathlib import Path
from jinja2 import Environment
template = Environment().from_string('''name: {{ name }}
on: {schedule: [{cron: "17 0 * * *"}], workflow_dispatch: {}}
jobs:
{% for key, job in jobs.items() %}
  {{ key }}:
    if: {{ "${{ contains(fromJSON(needs.plan.outputs.jobs), '" ~ key ~ "') }}" }}
    needs: plan
    runs-on: [self-hosted, {{ job.pool }}]
    timeout-minutes: 120
    steps:
      - uses: actions/checkout@v6
      - run: run {{ key }}
{% endfor %}
''')
root = Path(sys.argv[1])
for path in sorted(root.glob("workflows/nightly-*.yml")):
    spec = yaml.safe_load(path.read_text())
    (root / "out").mkdir(exist_ok=True)
    (root / "out" / path.name).write_text(template.render(name=spec["title"], jobs=spec["jobs"]))
"""
GHAGEN = """\
import sys, yaml
from pathlib import Path
from ghagen import App, Job, On, ScheduleTrigger, Step, Workflow, WorkflowDispatchTrigger
root = Path(sys.argv[1])
app = App(root=root / "ghagen")
for path in sorted(root.glob("workflows/nightly-*.yml")):
    spec = yaml.safe_load(path.read_text())
    jobs = {
        key: Job(
            runs_on=["self-hosted", job["pool"]], needs=["plan"], timeout_minutes=120,
            if_="${{ contains(fromJSON(needs.plan.outputs.jobs), '" + key + "') }}",
            steps=[Step(uses="actions/checkout@v6"), Step(run="run " + key)],
        )
        for key, job in spec["jobs"].items()
    }
    jobs = {"plan": Job(runs_on="ubuntu-24.04", steps=[Step(run="plan")]), **jobs}
    on = On(schedule=[ScheduleTrigger(cron="17 0 * * *")], workflow_dispatch=WorkflowDispatchTrigger())
    app.add_workflow(Workflow(name=spec["title"], on=on, jobs=jobs), path.name)
app.synth()
"""


def build(root: Path, workflows: int) -> None:
    """A repository of `workflows` specs with 5 jobs each, and the test files of their suites."""
    (root / "workflows").mkdir(parents=True)
    (root / "tests").mkdir()
    shutil.copy(ROOT / "workflows/actions.lock.yml", root / "workflows")
    (root / "workflows/runners.yml").write_text(RUNNERS)
    for index in range(JOBS):
        text = (
            f'import pytest\npytestmark = pytest.mark.suite("suite-{index}", est="60s")\n\n\ndef test_it():\n    pass\n'
        )
        (root / f"tests/test_{index}.py").write_text(text)
    for n in range(workflows):
        jobs = "".join(JOB.format(number=f"{n}-{index}", index=index) for index in range(JOBS))
        (root / f"workflows/nightly-{n:03}.yml").write_text(HEAD.format(n=n, hour=n % 24) + jobs)


def median(command: list[str], *, runs: int = 7, before: Callable[[], None] = lambda: None) -> float:
    """Median wall time of a whole process in seconds, after one run that does not count."""
    times = []
    for _ in range(runs + 1):
        before()
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure() -> dict[str, float]:
    """Every figure of the benchmark, in seconds unless its name says otherwise."""
    nightcap = str(Path(sys.executable).parent / "nightcap")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for workflows in (1, 10, 100):
            root = Path(scratch) / str(workflows)
            build(root, workflows)

            def clean(root: Path = root) -> None:
                shutil.rmtree(root / ".github", ignore_errors=True)

            figures[f"generate_{workflows * JOBS}_jobs"] = median([nightcap, "-C", str(root), "generate"], before=clean)
        figures["unchanged_500_jobs"] = median([nightcap, "-C", str(root), "generate"])
        for name, text in (("jinja_pyyaml", JINJA), ("ghagen", GHAGEN)):
            script = Path(scratch) / f"peer_{name}.py"
            script.write_text(text)
            figures[f"{name}_500_jobs"] = median([sys.executable, str(script), str(root)])
    figures["help"] = median([nightcap, "--help"], runs=15)
    figures["import_click_yaml"] = median([sys.executable, "-c", "import click, yaml"], runs=15)
    figures["help_ratio"] = figures["help"] / figures["import_click_yaml"]
    figures["ghagen_ratio"] = figures["generate_500_jobs"] / figures["ghagen_500_jobs"]
    figures["jinja_pyyaml_ratio"] = figures["generate_500_jobs"] / figures["jinja_pyyaml_500_jobs"]
    for name in ("generate", "ghagen", "jinja_pyyaml"):
        figures[f"{name}_ms_a_job"] = figures[f"{name}_500_jobs"] / 500 * 1000
    return figures


def main() -> None:
    """Measure and print; with --json keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures = {name: round(value, 4) for name, value in measure().items()}
    for name, value in figures.items():
        print(f"{name:28} {value:10.4f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
