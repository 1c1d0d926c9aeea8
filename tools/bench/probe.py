"""Tries every schedule once in a process of its own, on a small case whose sizes no tile divides. A kernel that faults
or hangs takes that process with it and nothing else; the next schedule gets a new one."""

import multiprocessing
import sys
from typing import NamedTuple

from . import check
from .compile import first_line

START_SECONDS = 60  # a child imports torch and opens the GPU
CHECK_SECONDS = 20  # the kernel is in the cache by now


class Job(NamedTuple):
    """`source` is the path or the text of a spec; the rest as for qkv.Engine and Engine.prepare."""
    device: str
    cache_dir: str
    source: str
    family: str
    schedule: str


def try_one(torch, engine, job):
    """One line on what is wrong, or "". Specs that torch has no equal of are only launched."""
    import qkv
    from .peers import Case, Ours
    case = Case("probe", qkv.Spec(job.source), job.source, *check.TAILS)
    tensors = case.tensors(torch, "cuda" if job.device == "cuda" else "cpu")
    bound = Ours(engine, case, job.family, job.schedule).bind(torch, *tensors)
    bound.run()
    got = bound.result()
    wanted = check.expected(torch, case.spec, case.mask, *tensors[:3]) if case.mask else None
    wrong = check.judge(case.spec.dtype_q, check.errors(wanted, got)) if wanted else ""
    if job.device == "cuda":
        torch.cuda.synchronize()
    return wrong and "%s at batch %d, len_q %d, len_k %d" % (wrong, *check.TAILS)


def _child(path, device, cache_dir, pipe):
    sys.path[:] = path
    import torch
    import qkv
    torch.manual_seed(2)
    torch.set_grad_enabled(False)
    engine = qkv.Engine(device, cache_dir=cache_dir)
    pipe.send("")
    while True:
        job = pipe.recv()
        try:
            pipe.send(try_one(torch, engine, job))
        except Exception as error:  # whatever it is, it is one line of the report
            pipe.send(first_line(error))
            if "CUDA" in str(error):  # the context may be gone for good
                return


class _Child:
    def __init__(self, job):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_child, args=(list(sys.path), job.device, job.cache_dir, other),
                                       daemon=True)
        self.process.start()
        other.close()
        self.ready = self._receive(START_SECONDS) == ""

    def _receive(self, seconds):
        """What the child says; None when it died or says nothing."""
        try:
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def ask(self, job):
        try:
            self.pipe.send(job)
        except OSError:
            return None
        return self._receive(CHECK_SECONDS)

    def stop(self):
        """Ends the child; says how it was."""
        self.process.join(0.2)  # one whose pipe just broke is dying
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return "it hung for %d s" % CHECK_SECONDS if code is None else "it crashed (exit code %d)" % code


def try_all(jobs):
    """{job: one line on what is wrong, or ""}. All jobs name the same device and cache."""
    found, child = {}, None
    try:
        for job in dict.fromkeys(jobs):
            child = child if child and child.process.is_alive() else _Child(job)
            found[job] = child.ask(job) if child.ready else "the process that tries schedules did not start"
            if found[job] is None:
                found[job] = "%s at batch %d, len_q %d, len_k %d" % (child.stop(), *check.TAILS)
        return found
    finally:
        if child:
            child.stop()
