"""Compiles all kernels of a run beforehand, in processes of their own: many at once, and one that hangs or crashes
costs itself alone. The kernels reach the run through the cache on disk."""

import multiprocessing
import os
import re
import sys
import time
from typing import NamedTuple


class Job(NamedTuple):
    """`device` is "none" or "emu"; the rest as for qkv.Engine and Engine.build."""
    device: str
    arch: str
    cache_dir: str
    spec: str
    family: str
    schedule: str


class Build(NamedTuple):
    """`problem` is "" or one line on why there is no kernel; the numbers are then None. Registers are those of the
    hungriest entry, spills the bytes of all."""
    problem: str
    schedule: str = ""
    family: str = ""
    registers: int = None
    spills: int = None
    seconds: float = None
    notes: str = ""
    compiler: str = ""  # as in Engine.device.compiler


def first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def build(job):
    """Runs in the child; also in this process, where a test calls it."""
    import qkv
    engine = None
    try:
        engine = qkv.Engine(job.device, arch=job.arch, cache_dir=job.cache_dir)
        report = engine.build(job.spec, family=job.family, schedule=job.schedule)
        return Build("", report.schedule, report.family, max(one.registers for one in report.entries),
                     sum(one.spill_stores + one.spill_loads for one in report.entries), report.compile_seconds,
                     report.notes, engine.device.compiler)
    except qkv.Error as error:
        return Build(first_line(error))
    finally:
        if engine:
            engine.close()


def share_nvrtc():
    """Makes the children use the NVRTC that this process has loaded already, which may be that of torch: another one
    has other cache keys, so that everything would be compiled twice."""
    with open("/proc/self/maps") as maps:
        loaded = [match[0] for match in re.finditer(r"/\S*/libnvrtc\.so[.\d]*$", maps.read(), re.MULTILINE)]
    if loaded:
        os.environ.setdefault("QKV_NVRTC", loaded[0])


def build_all(jobs, timeout, workers=None):
    """{job: Build}. Jobs that are not done after `timeout` seconds are given up."""
    jobs = list(dict.fromkeys(jobs))
    if not jobs:
        return {}
    workers = max(1, min(workers or os.cpu_count() or 1, len(jobs)))
    # spawn: the driver's state of this process must not be inherited.
    pool = multiprocessing.get_context("spawn").Pool(workers, _path, (list(sys.path),))
    try:
        pending = [pool.apply_async(build, (job,)) for job in jobs]
        deadline, found = time.monotonic() + timeout, {}
        for job, result in zip(jobs, pending):
            try:
                found[job] = result.get(max(0.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                found[job] = Build("not compiled within %g s (it hangs, or its process died)" % timeout)
        return found
    finally:
        pool.terminate()
        pool.join()


def _path(path):
    sys.path[:] = path
