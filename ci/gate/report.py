"""A night for people: text for the console, Markdown for the step summary, annotations; for machines: JSON.

The console shows the worst last, where a person's eye is when the command ends; the step summary shows it
first, since it may be cut. Names and messages come from tests, so in Markdown nothing of them is markup.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ci.gate.kinds import REPRODUCIBLE
from ci.gate.night import TESTS_WORST_FIRST, Finding, JudgedJob, Night, TestVerdict
from ci.gate.units import tests_text
from ci.gha.commands import Annotation, Level, Section, fit, markdown_text, shown
from ci.gha.limits import SUMMARY_BYTES

WHERE = "all of it is in verdict.json"
_FINDINGS = 100
"""Findings that the console shows in full."""
_NAMES = 10
"""Tests that one finding lists."""
_DETAIL_LINES = 15
_DETAIL_CHARACTERS = 2_000
_NAME_CHARACTERS = 300


def json(night: Night) -> str:
    """The night as JSON that `Night` reads back."""
    return night.model_dump_json(indent=1) + "\n"


def reproduce(finding: Finding) -> str:
    """The command that runs what a finding is about; empty where running it would show nothing."""
    if not (finding.kind in REPRODUCIBLE and finding.job and finding.shard):
        return ""
    only = finding.tests[0] if len(finding.tests) == 1 else finding.unit
    words = ["nightcap", "run", finding.job, "--shard", finding.shard, *(["--only", only] if only else [])]
    return shlex.join(words)


def headline(night: Night) -> str:
    """`FAILED: 3 failed, 1 lost, 996 passed of 1,000 tests; 2 of 16 jobs not green; 4 problems`."""
    selected = [job for job in night.jobs if job.verdict != "not-selected"]
    not_green = sum(job.verdict != "passed" for job in selected)
    counts = f"{_counts(night.counts)} of {tests_text(night.tests)}" if night.tests else "no test"
    problems = f"{len(night.problems):,} problem{'s' * (len(night.problems) != 1)}"
    return f"{night.verdict.upper()}: {counts}; {not_green} of {len(selected)} jobs not green; {problems}"


def _counts(counts: Mapping[TestVerdict, int]) -> str:
    """Tests by verdict, worst first."""
    return ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in TESTS_WORST_FIRST if counts.get(verdict))


# --- Console ---------------------------------------------------------------------------------------------


def text(night: Night) -> str:
    """The night for a console: jobs, warnings, problems with the worst last, and one line of verdict."""
    lines = [f"{night.workflow or 'unknown workflow'}: {_circumstances(night)}", "", *_table(night.jobs)]
    warnings = [one for one in night.findings if not one.red]
    for title, findings in (("warning", warnings), ("problem", list(night.problems))):
        if findings:
            lines += ["", *_findings(title, findings)]
    return "\n".join([*lines, "", headline(night), f"exit code {night.exit_code}"]) + "\n"


def _circumstances(night: Night) -> str:
    return f"event {night.event or '?'}, filter {night.filter or '?'}, plan {night.plan_hash or '?'}"


def _table(jobs: Sequence[JudgedJob]) -> Iterator[str]:
    rows = [("JOB", "VERDICT", "SHARDS OK", "TESTS", "WHY"), *((job.key, *_row(job)) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[4]]).rstrip()


def _row(job: JudgedJob) -> tuple[str, str, str, str]:
    """Verdict, shards, tests and reason of a job."""
    green = sum(shard.verdict == "passed" for shard in job.shards)
    shards = f"{green}/{len(job.shards)}" if job.shards else "-"
    return job.verdict, shards, _counts(job.counts) or "-", job.reason


def _findings(title: str, worst_first: Sequence[Finding]) -> Iterator[str]:
    """The findings with the worst last; of very many, the worst."""
    count = len(worst_first)
    plural = "s, the worst last" if count > 1 else ""
    yield f"{count:,} {title}{plural}"
    if count > _FINDINGS:
        yield f"  ... {count - _FINDINGS:,} lesser ones are not shown: {WHERE}"
    for one in reversed(worst_first[:_FINDINGS]):
        yield ""
        yield f"  {one.kind}  {_place(one)}"
        yield f"      {one.message}"
        yield from (f"      - {name}" for name in _names(one))
        yield from (f"      | {line}" for line in _detail(one).splitlines())
        yield f"      do: {one.fix}"
        if command := reproduce(one):
            yield f"      $ {command}"


def _place(finding: Finding) -> str:
    """The job, shard and test (or file) that a finding is about."""
    subject = finding.tests[0] if len(finding.tests) == 1 else finding.unit
    return " ".join(filter(None, (finding.job, finding.shard, subject))) or "the night"


def _names(finding: Finding) -> list[str]:
    """The tests of a finding that its place does not name already."""
    if len(finding.tests) < 2:
        return []
    names = [name[:_NAME_CHARACTERS] for name in finding.tests[:_NAMES]]
    more = len(finding.tests) - len(names)
    return [*names, f"... and {more:,} more"] if more else names


def _detail(finding: Finding) -> str:
    lines = finding.detail[:_DETAIL_CHARACTERS].split("\n")
    return "\n".join(lines[:_DETAIL_LINES]).rstrip()


# --- GitHub ----------------------------------------------------------------------------------------------


def markdown(night: Night, budget: int = SUMMARY_BYTES) -> str:
    """The night for the step summary, at most `budget` bytes: verdict, jobs, problems worst first."""
    warnings = [one for one in night.findings if not one.red]
    about = f"{markdown_text(night.workflow or 'unknown workflow')}: {markdown_text(_circumstances(night))}"
    sections = [Section(f"## {markdown_text(headline(night))}\n\n{about}\n\n")]
    if night.jobs:
        head = "| job | verdict | shards ok | tests | why |\n| --- | --- | --- | --- | --- |\n"
        jobs = sorted(night.jobs, key=lambda job: job.verdict in ("passed", "not-selected"))
        rows = [f"| {' | '.join(map(markdown_text, (job.key, *_row(job))))} |\n" for job in jobs]
        sections.append(Section(head, rows, tail="\n", noun="more jobs"))
    if night.problems:
        items = [_block(one) for one in night.problems]
        sections.append(Section(f"### Problems: {len(items):,}\n\n", items, noun="more problems"))
    if warnings:
        head = f"<details><summary>Warnings: {len(warnings):,}</summary><ul>\n"
        items = [f"<li>{_title(one)}: {_raw(one.message)}</li>\n" for one in warnings]
        sections.append(Section(head, items, tail="</ul></details>\n\n", noun="more warnings"))
    return fit(sections, budget, where=WHERE)


def annotated(night: Night) -> list[Annotation]:
    """The findings as annotations, within what GitHub shows of a step."""
    return shown((_annotation(one) for one in night.findings), where=WHERE)


def _annotation(finding: Finding) -> Annotation:
    command = reproduce(finding)
    lines = [finding.message, *_names(finding), _detail(finding), f"do: {finding.fix}", command]
    file = finding.unit if finding.unit.endswith(".py") else ""
    level: Level = "error" if finding.red else "warning"
    return Annotation(level, f"{finding.kind}: {_place(finding)}", "\n".join(filter(None, lines)), file)


def _block(finding: Finding) -> str:
    """One problem, folded: raw HTML, in which a blank line would make Markdown of the rest."""
    parts = [f"<details><summary>{_title(finding)}</summary>", _raw(finding.message)]
    if names := _names(finding):
        parts.append(f"<ul>{''.join(f'<li><code>{_raw(name)}</code></li>' for name in names)}</ul>")
    if detail := _detail(finding):
        parts.append(f"<pre>{_raw(detail)}</pre>")
    parts.append(f"<p>{_raw(finding.fix)}</p>")
    if command := reproduce(finding):
        parts.append(f"<pre>{_raw(command)}</pre>")
    return "\n".join([*parts, "</details>\n\n"])


def _title(finding: Finding) -> str:
    return f"<b>{_raw(finding.kind)}</b> <code>{_raw(_place(finding)[: 2 * _NAME_CHARACTERS])}</code>"


def _raw(content: str) -> str:
    """Text inside a block of raw HTML."""
    return html.escape(content).replace("\r", "").replace("\n", "&#10;")
