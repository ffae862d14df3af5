"""What runs on one host owe each other: locks for GPUs, ports of their own, room on the disk, and no remains.

Everything rests on `flock`, which the kernel lets go of when its holder dies, however it dies. A run is alive
as long as it holds the lock of its own file; so its remains are known for certain.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ci.runner import processes

PORTS_PER_RUN = 64
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below what Linux hands out by itself (32768 and up)."""
_MARK = re.compile(r"[0-9a-f]{32}")
_POLL_SECONDS = 0.2
_MOMENT = 5.0
"""A run that looks for remains may hold our new file for so long."""
_LEFT_OVER_GRACE = 2.0


class HostNotFit(Exception):
    """The host cannot run the tests; one line for a person. No test is to blame."""


@contextlib.contextmanager
def alive(mark: str, locks: Path, scratch: Path) -> Iterator[None]:
    """Tell the host's other runs that this one lives. Raises HostNotFit when the locks cannot be kept."""
    path = _run_file(mark, locks)
    descriptor = _take(path, wait=_MOMENT, about={"scratch": str(scratch)})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def gpu_locks(uuids: Sequence[str], locks: Path, *, wait: float, owner: str) -> Iterator[None]:
    """Own these GPUs as long as entered. Raises HostNotFit, naming the holder, when one stays taken.

    Taken in the order of their names, so that two runs which want the same GPUs never wait for each other.
    """
    deadline = time.monotonic() + wait
    with contextlib.ExitStack() as stack:
        for uuid in sorted(uuids):
            path = locks / f"gpu-{re.sub('[^A-Za-z0-9-]', '_', uuid)}.lock"
            descriptor = _take(path, wait=deadline - time.monotonic(), about={"gpu": uuid, "owner": owner})
            stack.callback(os.close, descriptor)
        yield


@contextlib.contextmanager
def ports(locks: Path, *, first: int = FIRST_PORT, last: int = LAST_PORT) -> Iterator[range]:
    """Lease a block of ports of which each is free on IPv4 and IPv6. Raises HostNotFit when there is none."""
    for start in range(first, last - PORTS_PER_RUN + 1, PORTS_PER_RUN):
        block = range(start, start + PORTS_PER_RUN)
        try:
            descriptor = _take(locks / f"ports-{start}.lock", wait=0, about={})
        except _Taken:
            continue
        try:
            if all(_is_free(port) for port in block):
                yield block
                return
        finally:
            os.close(descriptor)
    raise HostNotFit(f"no block of {PORTS_PER_RUN} free ports between {first} and {last}")


def require_space(folders: Sequence[Path], needed: int) -> None:
    """Raises HostNotFit when one of the folders lies on a disk with fewer free bytes than needed."""
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise HostNotFit(
                f"{folder} has {free / 2**20:.0f} MiB free and needs {needed / 2**20:.0f}: free some space"
            )


def end_left_overs(locks: Path) -> tuple[str, ...]:
    """End processes, and remove temporary files, of dead runs of this host: a line for each.

    Only what bears the mark of a run whose lock can be taken: a run that keeps its locks elsewhere is left alone.
    """
    said: list[str] = []
    for path in sorted(locks.glob("run-*.lock")):
        mark = path.name.removeprefix("run-").removesuffix(".lock")
        with contextlib.suppress(_Taken, FileNotFoundError):
            said += _end_dead_run(mark, path) if _MARK.fullmatch(mark) else []
    return tuple(said)


def _end_dead_run(mark: str, path: Path) -> list[str]:
    """Raises _Taken when the run lives, FileNotFoundError when it ended by itself meanwhile."""
    about = _about(path)
    ours = path.stat().st_uid == os.getuid()
    descriptor = _take(path, wait=0, about=None)
    try:
        found = processes.bearing(mark)
        survivors = processes.end(lambda: processes.bearing(mark), grace=_LEFT_OVER_GRACE)
        scratch = Path(about.get("scratch", ""))
        if ours and scratch.name.startswith("nightcap-"):
            shutil.rmtree(scratch, ignore_errors=True)
        if not survivors:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    lines = [f"ended a left-over of an earlier run: {p.pid} {p.command[:300]}" for p in found]
    return lines + [f"a left-over cannot be ended: {p.pid} (state {p.state})" for p in survivors]


class _Taken(HostNotFit):
    """Another process holds the lock."""


def _run_file(mark: str, locks: Path) -> Path:
    return locks / f"run-{mark}.lock"


def _take(path: Path, *, wait: float, about: dict[str, str] | None) -> int:
    """The descriptor of a lock file that is now held; `about` is what others will read in it, None leaves it.

    Raises _Taken, and HostNotFit when the folder of locks cannot be written.
    """
    deadline = time.monotonic() + wait
    try:
        descriptor = _open(path)
    except OSError as error:
        raise HostNotFit(f"cannot keep locks in {path.parent}: {error.strerror}; set NIGHTCAP_LOCKS") from None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or time.monotonic() >= deadline:
                os.close(descriptor)
                raise _Taken(_taken_text(path)) from None
            time.sleep(_POLL_SECONDS)
            continue
        if about is not None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), **about}).encode(), 0)
        return descriptor


def _open(path: Path) -> int:
    """The file, made when it is missing, and open to the other users of the host."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o1777)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    # Not O_CREAT at once: in a folder like /tmp the kernel refuses that for a file of another user.
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    os.fchmod(descriptor, 0o666)
    return descriptor


def _taken_text(path: Path) -> str:
    about = _about(path)
    what = f"GPU {about['gpu']}" if "gpu" in about else path.name
    return f"{what} is taken by {about.get('owner', 'another run')} (pid {about.get('pid', 'unknown')})"


def _about(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_free(port: int) -> bool:
    """True when it can be bound; without SO_REUSEADDR, so that a port in TIME_WAIT counts as taken."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family is socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # a host without IPv6
                return False
    return True
