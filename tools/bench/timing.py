"""Contestants of bench.rounds: how launches are timed. `runs` are functions that launch once, one an input set."""

import gc
import time

from . import rounds


class Replayed:
    """Batches of launches as replays of one CUDA graph, so that no host cost and no launch gap is counted. A contestant
    that cannot be captured is launched one by one; `why` says so."""

    def __init__(self, torch, runs, machine, slice_seconds):
        self.torch, self.machine, self.why = torch, machine, ""
        self.seconds = self._estimate(runs)
        self.plan = rounds.plan(self.seconds, slice_seconds, len(runs))
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(self.plan.samples + 1)]
        batch = [runs[number % len(runs)] for number in range(self.plan.launches)]
        self.replay = self._capture(batch) or (lambda: [run() for run in batch])

    def _estimate(self, runs, launches=4):
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        runs[0]()
        start.record()
        for number in range(launches):
            runs[number % len(runs)]()
        stop.record()
        stop.synchronize()
        return max(start.elapsed_time(stop) * 1e-3 / launches, 1e-6)

    def _capture(self, batch):
        self.torch.cuda.synchronize()
        stream, graph = self.torch.cuda.Stream(), self.torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # freeing device memory is not allowed while capturing
        try:
            with self.torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    for run in batch:
                        run()
                finally:
                    graph.capture_end()
            graph.replay()
            self.torch.cuda.synchronize()
            return graph.replay
        except RuntimeError as error:  # qkv.Error is one, too
            self.why = "no CUDA graph: %s" % str(error).strip().splitlines()[0]
            return None
        finally:
            if collecting:
                gc.enable()

    def slice(self):
        plan, started = self.plan, time.perf_counter()
        for _ in range(plan.settle):
            self.replay()
        self.events[0].record()
        for event in self.events[1:]:
            self.replay()
            event.record()
        middle = (plan.settle + plan.samples / 2) * plan.launches * self.seconds
        time.sleep(max(0.0, middle - (time.perf_counter() - started)))
        reading = self.machine.read()
        self.events[-1].synchronize()
        return rounds.Slice([first.elapsed_time(second) * 1e-3 / plan.launches
                             for first, second in zip(self.events, self.events[1:])], reading)


class Cold:
    """One launch a slice, after the L2 cache was overwritten, behind a busy GPU."""
    why = ""

    def __init__(self, torch, runs, machine):
        self.torch, self.runs, self.machine, self.number = torch, runs, machine, 0
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def slice(self):
        self.number += 1
        self.flush.zero_()
        self.torch.cuda._sleep(400_000)  # about 200 us: the launch is queued before the GPU is free
        self.events[0].record()
        self.runs[self.number % len(self.runs)]()
        self.events[1].record()
        self.events[1].synchronize()
        return rounds.Slice([self.events[0].elapsed_time(self.events[1]) * 1e-3], self.machine.read())


class Clocked:
    """One launch a slice by the host's clock: for the emulator, whose times mean nothing."""
    why = ""

    def __init__(self, runs):
        self.runs, self.number = runs, 0

    def slice(self):
        self.number += 1
        started = time.perf_counter()
        self.runs[self.number % len(self.runs)]()
        return rounds.Slice([time.perf_counter() - started])
