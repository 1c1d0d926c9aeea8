"""Clock, power and throttling of the GPU, and its ceilings in the same run: what cuBLAS and a copy reach."""

from typing import NamedTuple

from . import rounds, stats
from .timing import Replayed

# nvmlClocksEventReasons
REASONS = {0x1: "idle", 0x2: "application clocks", 0x4: "SW power cap", 0x8: "HW slowdown", 0x10: "sync boost",
           0x20: "SW thermal", 0x40: "HW thermal", 0x80: "HW power brake", 0x100: "display clocks"}


class Reading(NamedTuple):
    sm_mhz: float
    power_w: float
    reasons: tuple  # names of REASONS


def reason_names(bits):
    return tuple(name for bit, name in REASONS.items() if bits & bit)


def combine(readings):
    """One Reading of many: mean clock and power, every reason seen. None without any."""
    readings = [one for one in readings if one]
    if not readings:
        return None
    reasons = {name for one in readings for name in one.reasons}
    return Reading(stats.mean([one.sm_mhz for one in readings]), stats.mean([one.power_w for one in readings]),
                   tuple(name for name in REASONS.values() if name in reasons))


class Machine:
    """The GPU that torch uses, seen through NVML. read() is None where NVML or pynvml is missing; `why` says so."""

    def __init__(self, torch):
        self.handle, self.why, self.name, self.driver = None, "", "", ""
        try:
            import pynvml
            pynvml.nvmlInit()
            self.nvml = pynvml
            self.handle = self._handle(pynvml, torch)
            self.name, self.driver = (str(text.decode() if isinstance(text, bytes) else text) for text in (
                pynvml.nvmlDeviceGetName(self.handle), pynvml.nvmlSystemGetDriverVersion()))
        except Exception as error:  # pynvml.NVMLError is no class before the import
            self.why = "clock and power are unknown: %s" % error

    @staticmethod
    def _handle(pynvml, torch):
        """By UUID, as CUDA_VISIBLE_DEVICES renumbers the devices of torch but not those of NVML."""
        try:
            return pynvml.nvmlDeviceGetHandleByUUID("GPU-%s" % torch.cuda.get_device_properties(0).uuid)
        except (AttributeError, pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self):
        if self.handle is None:
            return None
        nvml = self.nvml
        try:
            return Reading(nvml.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_SM),
                           nvml.nvmlDeviceGetPowerUsage(self.handle) / 1000,
                           reason_names(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)))
        except nvml.NVMLError as error:
            self.why = "clock and power are unknown: %s" % error
            self.handle = None
            return None


class Ceiling(NamedTuple):
    """A rate that no kernel of this run should exceed, and the machine while it was measured (None: unknown)."""
    what: str
    rate: float
    unit: str
    reading: Reading

    def __str__(self):
        line = "%s: %.4g %s" % (self.what, self.rate, self.unit)
        return line if not self.reading else line + ", %.0f MHz, %.0f W, held by: %s" % (
            self.reading.sm_mhz, self.reading.power_w, ", ".join(self.reading.reasons) or "nothing")


def _steady(torch, machine, run, warm_up_seconds):
    """(seconds of one launch, Reading) over five slices of 0.1 s after the warm-up."""
    timed = Replayed(torch, [run], machine, 0.1)
    slices = rounds.alternate({"": timed}, 5, warm_up=max(1, round(warm_up_seconds / 0.1)))[""]
    return stats.quantile([one.mean for one in slices], 0.5), combine([one.reading for one in slices])


def cublas(torch, machine, warm_up_seconds, size=8192):
    """A bf16 product of random matrices; brings the GPU to its steady clock."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    seconds, reading = _steady(torch, machine, lambda: torch.mm(a, b, out=c), warm_up_seconds)
    return Ceiling("cuBLAS %d^3 bf16" % size, 2 * size ** 3 / seconds * 1e-12, "TFLOP/s", reading)


def copy(torch, machine, size=1 << 30, warm_up_seconds=0.2):
    """Bytes read and written per second by a copy on the device, much larger than its L2 cache."""
    source, target = (torch.empty(size, device="cuda", dtype=torch.uint8) for _ in range(2))
    source.zero_()
    seconds, reading = _steady(torch, machine, lambda: target.copy_(source), warm_up_seconds)
    return Ceiling("copy of %d MiB, read and written" % (size >> 20), 2 * size / seconds * 1e-12, "TB/s", reading)
