"""Registration calls of other engines: how their test files name a suite, one small adapter a convention.

A convention is a function that turns one call of the syntax tree into a `SuiteUse`; `REGISTRATIONS` maps the
name of the called function to it. Only calls at the top level of a module count, as in the engines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ci.suites.uses import SuiteUse, Unreadable, literal_arguments, suite_name

Adapter = Callable[[ast.Call, str], SuiteUse]


def backend_registration(call: ast.Call, callee: str) -> SuiteUse:
    """`register_cuda_ci(est_time=90, suite="NAME")`, or `stage=` and `runner_config=` in place of the suite.

    As in SGLang and TokenSpeed: the pair names the suite `STAGE-test-RUNNER_CONFIG`, and `disabled="reason"`
    takes the file out of the suite.
    """
    values = literal_arguments(
        call,
        callee,
        ("est_time", "suite", "nightly", "disabled"),
        ("stage", "runner_config", "in_process_group", "labels"),
    )
    stage, runner_config, suite = values.get("stage"), values.get("runner_config"), values.get("suite")
    if suite is None and isinstance(stage, str) and isinstance(runner_config, str):
        suite = f"{stage}-test-{runner_config}"
    elif stage is not None or runner_config is not None:
        message = f"{callee} must name its suite in one way"
        raise Unreadable(call, message, "give suite=, or stage= and runner_config=")
    est, disabled = values.get("est_time"), values.get("disabled")
    if not isinstance(est, (int, float)) or isinstance(est, bool) or est < 0:
        raise Unreadable(call, f"{callee}: est_time={est!r} is no number of seconds", "write est_time=90")
    if disabled is not None and not isinstance(disabled, str):
        raise Unreadable(call, f"{callee}: disabled={disabled!r} is no reason", 'write disabled="why"')
    return SuiteUse(suite=suite_name(call, callee, suite), line=call.lineno, est=float(est), disabled=disabled)


REGISTRATIONS: dict[str, Adapter] = {
    f"register_{backend}_ci": backend_registration for backend in ("cpu", "cuda", "amd", "npu", "xpu", "musa", "mlx")
}
