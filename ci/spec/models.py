"""Typed models of the specs: the fleet (`workflows/runners.yml`) and one workflow (`workflows/NAME.yml`).

The models say what a spec may hold, field by field; `ci.spec.loader` reads files into them and turns every
violation into an error with file and line. Whatever needs more than one field of one object (unknown pools,
timeouts against each other, expiries) is judged in `ci.spec.checks`. All times are whole seconds.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
)

from ci.gha.limits import JOB_KEY_PATTERN, MATRIX_JOBS

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse_duration(value: object) -> object:
    """Seconds of a text such as `90s`, `40m`, `2h` or `1h30m`. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"a duration without a unit: write {value}s, {value}m or {value}h")
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None or not any(match.groups()):
        raise ValueError("not a duration: write it as 90s, 40m, 2h or 1h30m")
    seconds = sum(int(part or 0) * _UNITS[unit] for part, unit in zip(match.groups(), "dhms", strict=True))
    if seconds == 0:
        raise ValueError("no time at all: write 1s or more")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest spelling that `parse_duration` reads back: 5400 -> `1h30m`. Fractions are rounded up."""
    left, text = max(0, int(-(-seconds // 1))), ""
    for unit, size in _UNITS.items():
        if left >= size:
            text += f"{left // size}{unit}"
            left %= size
    return text or "0s"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration, json_schema_input_type=str),
    Field(
        json_schema_extra={
            "pattern": r"^(?=\d)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$",
            "examples": ["90s", "40m", "2h", "1h30m"],
        }
    ),
]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
TAG_PATTERN = r"^[a-z0-9][a-z0-9_.-]*$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
SECRET_PATTERN = r"^[A-Z_][A-Z0-9_]*$"
REPOSITORY_PATTERN = r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$"
PATTERN_WORDS = {
    NAME_PATTERN: "a name has letters, digits, `_`, `.` and `-`, and begins with a letter or digit",
    JOB_KEY_PATTERN: "GitHub takes letters, digits, `_` and `-`, and a letter or `_` first",
    TAG_PATTERN: "a tag has lower-case letters, digits, `_`, `.` and `-`, and begins with a letter or digit",
    ENV_PATTERN: "a variable has letters, digits and `_`, and begins with a letter or `_`",
    SECRET_PATTERN: "a secret has capital letters, digits and `_`, and begins with a letter or `_`",
    REPOSITORY_PATTERN: "a repository is owner/name",
}
"""What each pattern allows, in words for errors."""


def parse_day(value: object) -> object:
    """The date of a text YYYY-MM-DD. Raises ValueError for anything else.

    Pydantic alone would take a number for a time stamp.
    """
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("not a date: write it as YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError("no day of the calendar: write a real one as YYYY-MM-DD") from None


def one_value(value: object) -> object:
    """Text, a number or a boolean; a list or a mapping is refused with ValueError."""
    if not isinstance(value, str | int | float):
        raise ValueError("not one value: write text, a number, true or false")
    return value


def inside_repository(path: str) -> str:
    """A path or glob below the repository's root. Raises ValueError for one that leaves it."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError("a path that leaves the repository: write it from the repository's root")
    return path


def _is_list(value: object) -> str:
    return "<list>" if isinstance(value, list) else "<one>"


def _is_mapping(value: object) -> str:
    return "<mapping>" if isinstance(value, dict | BaseModel) else "<one>"


UNION_TAGS = frozenset({"<list>", "<mapping>", "<one>"})
"""Steps that pydantic adds to the place of an error inside a union; no field is named so."""
Day = Annotated[date, BeforeValidator(parse_day)]
Name = Annotated[StrictStr, Field(pattern=NAME_PATTERN, max_length=100)]
JobKey = Annotated[StrictStr, Field(pattern=JOB_KEY_PATTERN, max_length=100)]
JobTag = Annotated[StrictStr, Field(pattern=TAG_PATTERN, max_length=50)]
EnvName = Annotated[StrictStr, Field(pattern=ENV_PATTERN)]
EnvValue = Annotated[StrictStr | StrictBool | StrictInt | StrictFloat, BeforeValidator(one_value)]
InputName = Annotated[StrictStr, Field(pattern=JOB_KEY_PATTERN)]
Secret = Annotated[StrictStr, Field(pattern=SECRET_PATTERN)]
Text = Annotated[StrictStr, Field(min_length=1)]
RepoPath = Annotated[StrictStr, Field(min_length=1), AfterValidator(inside_repository)]


class Model(BaseModel):
    """Strict and frozen: an unknown field or a value of another type is an error, never a guess."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Container(Model):
    """The container in which every job of a pool runs."""

    image: Text = Field(description="Image, best pinned by digest.")
    options: StrictStr = Field("", description="Options of `docker create`, such as `--gpus all`.")


class Pool(Model):
    """Identical runners behind one set of labels."""

    labels: list[Text] = Field(min_length=1, description="Every label that `runs-on` asks for.")
    hosted: StrictBool = Field(False, description="True for GitHub's own machines (6 h a job in place of 5 days).")
    gpus: StrictInt = Field(0, ge=0, le=1024, description="GPUs that a job of this pool owns.")
    sm: StrictInt | None = Field(None, ge=10, le=999, description="SM version, such as 90 for Hopper.")
    memory_gib: StrictInt | None = Field(None, ge=1, description="Memory of one GPU in GiB.")
    machines: StrictInt = Field(1, ge=1, description="Machines in the pool.")
    timeout: Duration | None = Field(None, description="The longest that a job may hold a machine of this pool.")
    setup: list[Text] = Field([], description="Commands run before the tests, in bash with -eo pipefail.")
    container: Container | None = None


class Fleet(Model):
    """`workflows/runners.yml`: the repository whose schedule counts, and its pools of runners."""

    repository: Annotated[StrictStr, Field(pattern=REPOSITORY_PATTERN)] = Field(
        description="owner/name; schedules run there and in no fork."
    )
    control: list[Text] = Field(
        ["ubuntu-24.04"], min_length=1, description="Labels of the small machines on which plan and gate run."
    )
    install: Text = Field(
        "python3 -m pip install --quiet .",
        description="Command that puts `nightcap` into the job's virtual environment.",
    )
    pools: dict[Name, Pool] = Field(min_length=1, description="Pools by the name that jobs ask for.")


class Schedule(Model):
    """One cron line of GitHub's scheduler."""

    cron: Text = Field(description="Five fields; avoid minute 0, when GitHub's scheduler is busiest.")
    timezone: Text = Field("UTC", description="IANA name, such as Europe/Berlin.")


class Input(Model):
    """One extra input of a manual run. Its default holds on every event, also on a schedule."""

    description: Text = Field(description="What GitHub's form says of it.")
    type: Literal["string", "boolean", "number", "choice"] = "string"
    default: EnvValue | None = None
    options: list[Text] = Field([], description="The choices of `type: choice`.")
    required: StrictBool = False


class Dispatch(Model):
    """A manual run; the input `job_filter` is always there."""

    inputs: dict[InputName, Input] = Field({}, description="Inputs beside `job_filter`, at most 24.")


class Call(Model):
    """Callable from another workflow, with the inputs of a manual run."""


class Branches(Model):
    """Pushes or pull requests to some branches; none named means all."""

    branches: list[Text] = Field([], description="Names or globs, as GitHub reads them.")


class Triggers(Model):
    """When the workflow runs."""

    schedule: (
        Annotated[
            Annotated[Schedule, Tag("<one>")] | Annotated[list[Schedule], Tag("<list>")],
            Discriminator(_is_list),
        ]
        | None
    ) = Field(None, description="Cron lines of GitHub's scheduler.")
    dispatch: Dispatch | None = Field(None, description="Manual runs; `{}` for no input but `job_filter`.")
    call: Call | None = Field(None, description="`{}`: another workflow may call this one.")
    pull_request: Branches | None = Field(None, description="`{}` for all; never on machines of one's own.")
    push: Branches | None = Field(None, description="Pushes to branches.")

    @property
    def schedules(self) -> list[Schedule]:
        """The schedule as a list, whichever way it was written."""
        return [self.schedule] if isinstance(self.schedule, Schedule) else self.schedule or []

    @property
    def events(self) -> list[str]:
        """The events that start the workflow, as GitHub names them."""
        names = {"dispatch": "workflow_dispatch", "call": "workflow_call"}
        return [names.get(name, name) for name in type(self).model_fields if getattr(self, name) is not None]


class Allowance(Model):
    """Why something that would be an error is allowed, and until when."""

    reason: Text = Field(description="Why, for whoever reads it next.")
    expires: Day = Field(description="YYYY-MM-DD; from the day after, it is an error.")


class SuiteDecl(Model):
    """A suite that test files do not name themselves: by globs, or an external command."""

    files: list[RepoPath] = Field([], description="Globs of test files, from the repository's root.")
    command: StrictStr | None = Field(
        None,
        min_length=1,
        description="External runner, in bash. Its environment has NIGHTCAP_SUITE, NIGHTCAP_SHARD_INDEX "
        "(from 0), NIGHTCAP_SHARD_COUNT and NIGHTCAP_TESTS_FILE (this shard's tests, one a line).",
    )
    manifest: RepoPath | None = Field(
        None, description="JSON file {suite: {test: seconds}} that lists what an external command runs."
    )
    junit: StrictStr | None = Field(
        None, description="JUnit file that the command leaves; it gives every test a result of its own."
    )
    gpus: StrictInt = Field(0, ge=0, description="GPUs that the suite needs.")
    min_sm: StrictInt | None = Field(None, ge=10, description="Lowest SM version that the suite runs on.")
    est: Duration | None = Field(None, description="Expected time of one file without a measurement.")
    allow_empty: Allowance | None = Field(None, description="Accept that the suite has no test, until a date.")


class AutoShards(Model):
    """As many shards as the target time asks for."""

    max: StrictInt = Field(ge=1, le=MATRIX_JOBS, description="The most shards, whatever the target asks for.")
    target: Duration = Field(description="Predicted time of one shard.")


class After(Model):
    """The edge from a job to the jobs before it."""

    jobs: Annotated[
        Annotated[Literal["all"], Tag("<one>")] | Annotated[list[JobKey], Field(min_length=1), Tag("<list>")],
        Discriminator(_is_list),
    ] = Field(description="A list of job keys, or `all` for every job with suites.")
    when: Literal["success", "end"] = Field(
        description="`success`: only if each selected job before it passed. `end`: however they ended."
    )


class Job(Model):
    """One job: suites on a pool, or plain commands after other jobs."""

    pool: Name | None = Field(None, description="Pool of `runners.yml` on which it runs.")
    suites: list[Name] = Field([], description="Suites that it runs, in order.")
    commands: list[Text] = Field([], description="Plain commands in place of suites, in bash with -eo pipefail.")
    after: After | None = None
    select: Literal["filter", "always"] = Field(
        "filter", description="`always`: runs whatever the filter selects, unless a `!term` removes it."
    )
    aliases: list[Name] = Field([], description="Other or older names that filters know; they may begin with a digit.")
    tags: list[JobTag] = Field([], description="Words that group jobs, for the filter `tag:WORD`.")
    timeout: Duration | None = Field(None, description="Time limit of one shard, set-up included; at most the pool's.")
    file_timeout: Duration | None = Field(None, description="Time limit of one test file.")
    disk_gib: StrictInt = Field(1, ge=0, description="Free disk in GiB without which no test file starts.")
    shards: Annotated[
        Annotated[StrictInt, Field(ge=1, le=MATRIX_JOBS), Tag("<one>")] | Annotated[AutoShards, Tag("<mapping>")],
        Discriminator(_is_mapping),
    ] = Field(1, description="A number, or `{max: 8, target: 30m}` for as many as the tests' times ask for.")
    exclude_marks: list[Name] = Field([], description="Tests with one of these pytest marks are not planned.")
    env: dict[EnvName, EnvValue] = Field({}, description="Variables of this job, over the workflow's.")
    artifacts: list[RepoPath] = Field([], description="Globs of files to keep beside the journal.")
    enabled: StrictBool = Field(True, description="False: the job rests, until `disabled` expires.")
    disabled: Allowance | None = Field(None, description="Needed with `enabled: false`.")


class Defaults(Model):
    """Values for every job that does not say otherwise."""

    pool: Name | None = None
    timeout: Duration | None = None
    file_timeout: Duration | None = None
    exclude_marks: list[Name] = []


class Workflow(Model):
    """`workflows/NAME.yml`: one workflow."""

    title: Text = Field(description="Name on the Actions page.")
    template: Name = Field(description="NAME of `templates/NAME.yml.j2`.")
    triggers: Triggers = Field(description="When it runs; at least one.")
    defaults: Defaults = Field(Defaults(), description="Values for every job that does not say otherwise.")
    env: dict[EnvName, EnvValue] = Field({}, description="Variables of every job with suites or commands.")
    secrets: list[Secret] = Field(
        [], description="Secrets given to every job with suites or commands, as variables of the same name."
    )
    suites: dict[Name, SuiteDecl] = Field({}, description="Suites that test files do not fully name themselves.")
    jobs: dict[JobKey, Job] = Field(
        min_length=1, description="Jobs by key; the key is stable, a rename leaves the old one in `aliases`."
    )

    def with_defaults(self) -> Workflow:
        """This workflow with `defaults` written into every job (jobs that say nothing of their own)."""

        def filled(job: Job) -> Job:
            default: dict[str, Any] = {
                name: getattr(self.defaults, name)
                for name in Defaults.model_fields
                if name not in job.model_fields_set and name in self.defaults.model_fields_set
            }
            return job.model_copy(update=default)

        return self.model_copy(update={"jobs": {key: filled(job) for key, job in self.jobs.items()}})
