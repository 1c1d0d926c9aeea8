"""Specs, engines, prepared operations and launches: the objects of libqkv."""

import collections
import ctypes
import json
import logging
import weakref
from ctypes import byref, c_double, c_int64, c_void_p
from types import SimpleNamespace

from . import _library as c
from . import _append, _merge, _tensor

Param = collections.namedtuple("Param", "name dtype rank")
#: Arrays of lengths and pages of a call whose sequences have lengths of their own.
ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "page_table", "page_indptr")
SCALES = ("k_scale", "v_scale")
_LAYOUTS = ("dense", "padded", "ragged", "paged")

Workload = collections.namedtuple("Workload", "name batch len_q len_k")

_LOG_LEVELS = {1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}


def _log_to_logging(level, message):
    logging.getLogger("qkv").log(_LOG_LEVELS.get(level, logging.INFO), "%s", message)


class _Handle:
    """Owns a C object; freed by close(), at the end of a `with`, when collected, or at exit, last made first."""

    def _own(self, pointer, free):
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, free, pointer)

    @property
    def handle(self):
        """The C pointer, for calls through qkv.lowlevel."""
        if not self._finalizer.alive:
            raise c.Error(c.INVALID_ARGUMENT, "this %s is closed" % type(self).__name__.lower())
        return self._pointer

    def close(self):
        """Frees the C object. Calling it again does nothing."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Spec(_Handle):
    """A checked spec. `source` is the path of a YAML file, or the YAML text itself when it contains a newline.

    name                              str
    heads_q heads_kv dim_qk dim_v     int
    dtype_q dtype_kv dtype_out        "f16", "bf16", ...
    outputs                           the tensors a call returns, in order: "o", then "lse", "lse_with_sink"
    has_sink                          a call needs sink=
    has_kv_scale                      a call needs k_scale= and v_scale=
    layout_q layout_kv                "dense", "padded", "ragged" or "paged"
    page_size page_order page_table   of paged keys: tokens, "nhd" or "hnd", "rows" or "csr"; else None
    params                            (Param(name, dtype, rank), ...) in order of declaration; rank 0 is a number
    workloads                         (Workload(name, batch, len_q, len_k), ...)
    append                            the section append as a dict with its defaults; None without one

    Raises Error with status BAD_SPEC; its text is the whole diagnosis (file:line:column, source line, caret).
    """

    def __init__(self, source):
        pointer = c_void_p()
        c.call("qkv_spec_check", c.encode(source), 0, byref(pointer))
        self._adopt(pointer)

    @classmethod
    def from_pack(cls, engine, name):
        """The spec of that name in the packs of an engine."""
        self, pointer = cls.__new__(cls), c_void_p()
        c.call("qkv_spec_from_pack", engine.handle, c.encode(name), byref(pointer))
        self._adopt(pointer)
        return self

    def _adopt(self, pointer):
        lib = c.libqkv()
        self._own(pointer, lib.qkv_spec_free)
        info = c.SpecInfo()
        lib.qkv_spec_get_info(pointer, byref(info))
        self.name = info.name.decode()
        self.heads_q, self.heads_kv, self.dim_qk, self.dim_v = info.heads_q, info.heads_kv, info.dim_qk, info.dim_v
        self._dtype_q, self._dtype_kv, self._dtype_out = info.dtype_q, info.dtype_kv, info.dtype_out
        self.dtype_q, self.dtype_kv, self.dtype_out = (c.DTYPE_NAMES[t] for t in
                                                       (info.dtype_q, info.dtype_kv, info.dtype_out))
        self.outputs = ("o",) + ("lse",) * bool(info.wants_lse) + ("lse_with_sink",) * bool(info.wants_lse_with_sink)
        self.has_sink, self.has_kv_scale = bool(info.has_sink), bool(info.has_kv_scale)
        self.layout_q, self.layout_kv = _LAYOUTS[info.layout_q], _LAYOUTS[info.layout_kv]
        paged = self.layout_kv == "paged"
        self.page_size = info.page_size if paged else None
        self.page_order = ("nhd", "hnd")[info.page_order] if paged else None
        self.page_table = ("rows", "csr")[info.page_table] if paged else None
        self.params = tuple(self._param(n) for n in range(info.nparams))
        self.workloads = tuple(self._workload(n) for n in range(info.nworkloads))
        self.append = self.json().get("append")

    def _param(self, n):
        info = c.ParamInfo()
        c.call("qkv_spec_get_param", self._pointer, n, byref(info))
        return Param(info.name.decode(), c.DTYPE_NAMES[info.dtype], info.rank)

    def _workload(self, n):
        info = c.Workload()
        c.call("qkv_spec_get_workload", self._pointer, n, byref(info))
        return Workload(info.name.decode(), info.batch, info.len_q, info.len_k)

    def param_shape(self, name, batch, len_q, len_k):
        """The shape parameter `name` must have for these sizes: a tuple of ints, () for a scalar."""
        n = [param.name for param in self.params].index(name)
        shape = (c_int64 * 4)()
        c.call("qkv_spec_param_shape", self.handle, n, batch, len_q, len_k, shape)
        return tuple(shape[:self.params[n].rank])

    def _text(self, function):
        text = c_void_p()
        c.call(function, self.handle, byref(text))
        return c.take_string(text)

    def canonical(self):
        """The canonical form: two specs that mean the same have the same text."""
        return self._text("qkv_spec_canonical")

    def json(self):
        """The canonical form with name, schedule and workloads, as a dict."""
        return json.loads(self._text("qkv_spec_json"))

    def __repr__(self):
        return "<qkv.Spec %s: %d/%d heads, dim %d/%d, %s>" % (self.name, self.heads_q, self.heads_kv, self.dim_qk,
                                                              self.dim_v, self.dtype_q)


def _as_spec(spec):
    return spec if isinstance(spec, Spec) else Spec(spec)


def _limits(*, batch=0, len_q=0, len_k=0, aligned_only=False, family=None, phase=None, schedule=None):
    return c.Limits(batch=batch, len_q=len_q, len_k=len_k, aligned_only=int(aligned_only), family=c.encode(family),
                    phase=c.encode(phase), schedule=c.encode(schedule))


class Engine(_Handle):
    """A device with its compiler and cache. Use it from any number of threads.

    device         "auto" (a GPU if there is one, else emu), "cuda", "cuda:1", "emu", "none" (compile only)
    cache_dir      None: $QKV_CACHE_DIR, else ~/.cache/qkvc; "": memory only
    template_path  directory whose templates override the built-in ones
    arch           architecture to generate for, e.g. "sm_90a"; None: the device's
    disable_jit    raise NOT_PREPARED instead of compiling
    emu_seed       order of asynchronous work on the emulator
    emu_granule    bytes of memory that a pool on the emulator maps at once; 0: 2 MiB
    tuned_dir      directory of tables of tuned schedules; None: $QKV_TUNED_DIR, else "tuned" in the cache directory;
                   "": no tables, default schedules everywhere
    debug_checks   every call first looks at lengths, pages and addresses, and waits for the device (qkv_attention)
    log            callable(level, text), level 1 warning 2 info 3 debug; None: logging.getLogger("qkv")
    packs          paths of packs (`qkvc bundle`), searched in this order; None: $QKV_PACKS
    """

    def __init__(self, device="auto", *, cache_dir=None, template_path=None, arch=None, disable_jit=False, emu_seed=0,
                 emu_granule=0, debug_checks=False, tuned_dir=None, log=None, packs=None):
        sink = log or _log_to_logging
        # Kept alive as long as the engine: C calls it from any thread.
        self._log = c.LogFunction(lambda level, text, user: sink(level, text.decode("utf-8", "replace")))
        options = c.Options(device=c.encode(device), cache_dir=c.encode(cache_dir),
                            template_path=c.encode(template_path), arch=c.encode(arch),
                            disable_jit=int(disable_jit), emu_seed=emu_seed, emu_granule=emu_granule,
                            debug_checks=int(debug_checks), tuned_dir=c.encode(tuned_dir), log=self._log)
        if packs is not None:
            paths = [c.encode(path) for path in packs] + [None]
            options.packs = (ctypes.c_char_p * len(paths))(*paths)
        pointer = c_void_p()
        c.call("qkv_open", byref(options), byref(pointer))
        self._own(pointer, c.libqkv().qkv_close)
        self._packs = []  # bytes that C reads as long as the engine lives
        self._launches, self._ops, self._pools = weakref.WeakSet(), weakref.WeakSet(), weakref.WeakSet()
        info = c.DeviceInfo()
        c.call("qkv_device_get_info", pointer, byref(info))
        #: name kind arch ordinal sm_count compute_major compute_minor l2_bytes memory_bytes driver_version compiler
        #: clock_hz memory_bandwidth shared_per_block
        self.device = SimpleNamespace(**{
            field: value.decode() if isinstance(value, bytes) else value
            for field, value in ((name, getattr(info, name)) for name, _ in c.DeviceInfo._fields_[1:])})

    def close(self):
        """Frees the launches, prepared operations and pools of this engine, then the engine."""
        for child in list(self._launches) + list(self._ops) + list(self._pools):
            child.close()
        super().close()

    @property
    def counters(self):
        """compiles, cache_hits, cache_errors, launches, renders, pack_hits, load_seconds since the engine was opened."""
        counters = c.Counters()
        c.libqkv().qkv_get_counters(self.handle, byref(counters))
        return SimpleNamespace(**{name: getattr(counters, name) for name, _ in c.Counters._fields_[1:]})

    @property
    def cache_path(self):
        """The cache directory in use, "" when the cache is memory only."""
        return c.libqkv().qkv_cache_path(self.handle).decode()

    @property
    def tuned_path(self):
        """The directory of the user's tables of tuned schedules, "" when there is none."""
        return c.libqkv().qkv_tuned_path(self.handle).decode()

    def prepare(self, spec, *, batch=0, len_q=0, len_k=0, aligned_only=False, family=None, phase=None, schedule=None):
        """All slow work: render, compile or read the cache, load. Returns an Op.

        batch, len_q, len_k are declared maxima (0: none); a family that needs a workspace requires them.
        aligned_only promises 16-byte aligned rows and saves one compile; other tensors are then refused.
        family, phase and schedule ("tile_m=128,stages=2") override the choice of the library.
        """
        return Op(self, _as_spec(spec), _limits(batch=batch, len_q=len_q, len_k=len_k, aligned_only=aligned_only,
                                                family=family, phase=phase, schedule=schedule))

    def prepare_many(self, specs, *, threads=0, progress=None, **limits):
        """Prepares many specs at once, in parallel: a list of Op. Takes the limits of prepare, the same for all of them.

        specs     each a Spec, a path or text; or a pair of that and a dict of limits of its own
        threads   specs under way, and compilers at once; 0: the number of cores
        progress  callable(done, total, spec name, how, seconds), from any thread, one call at a time; how is "pack",
                  "cache", "compiled" or "failed"
        When some fail, the others are prepared all the same, and Error is raised, whose text names every one that failed
        and whose `ops` is the list, with None in their places.
        """
        pairs = [item if isinstance(item, tuple) else (item, {}) for item in specs]
        handles = [_as_spec(spec) for spec, _ in pairs]
        own = [_limits(**{**limits, **more}) for _, more in pairs]
        count, options = len(pairs), c.PrepareManyOptions(threads=threads)
        if progress:
            options.progress = c.ProgressFunction(lambda done, total, name, how, seconds, user: progress(
                done, total, name.decode(), how.decode(), seconds))
        pointers = (c_void_p * count)()
        try:
            c.call("qkv_prepare_many", self.handle, count, (c_void_p * count)(*(spec.handle.value for spec in handles)),
                   (ctypes.POINTER(c.Limits) * count)(*(ctypes.pointer(one) for one in own)), pointers, None,
                   byref(options))
        except c.Error as error:
            error.ops = [Op(self, spec, one, pointer) if pointer else None
                         for spec, one, pointer in zip(handles, own, pointers)]
            raise
        return [Op(self, spec, one, pointer) for spec, one, pointer in zip(handles, own, pointers)]

    def load_pack(self, pack):
        """Adds a pack: a path, or its bytes, which the engine keeps. Loaded packs are searched in order."""
        if isinstance(pack, bytes):
            c.call("qkv_pack_load_memory", self.handle, pack, len(pack))
            self._packs.append(pack)
        else:
            c.call("qkv_pack_load", self.handle, c.encode(pack))

    def _build_options(self, arch, family, phase, schedule, unaligned, batch=0, len_q=0, len_k=0):
        return c.BuildOptions(arch=c.encode(arch), family=c.encode(family), phase=c.encode(phase),
                              schedule=c.encode(schedule), unaligned=int(unaligned), batch=batch, len_q=len_q,
                              len_k=len_k)

    def generate(self, spec, *, arch=None, family=None, phase=None, schedule=None, unaligned=False, **maxima):
        """The CUDA source of one kernel, a str. maxima: batch, len_q, len_k as for prepare."""
        text = c_void_p()
        options = self._build_options(arch, family, phase, schedule, unaligned, **maxima)
        spec = _as_spec(spec)  # held over the call: a spec made of text would be freed with its last name
        c.call("qkv_generate", self.handle, spec.handle, byref(options), byref(text))
        return c.take_string(text)

    def build(self, spec, *, arch=None, family=None, phase=None, schedule=None, unaligned=False, **maxima):
        """Compiles one kernel for any architecture (no GPU needed) and reports: family, arch, schedule, key,
        from_cache, the seconds of render, compile and load, image_bytes, notes, advisories (a list: what the compiler
        says costs speed), and per entry registers, spills, stack, shared memory, threads and counts of advisories."""
        options = self._build_options(arch, family, phase, schedule, unaligned, **maxima)
        report = c.BuildReport()
        spec = _as_spec(spec)  # held over the call: a spec made of text would be freed with its last name
        c.call("qkv_build", self.handle, spec.handle, byref(options), byref(report))
        result = SimpleNamespace(**{
            name: getattr(report, name) for name in ("render_seconds", "compile_seconds", "load_seconds",
                                                     "image_bytes")})
        result.family, result.arch, result.schedule, result.key = (
            getattr(report, name).decode() for name in ("family", "arch", "schedule", "key"))
        result.from_cache = bool(report.from_cache)
        result.notes = c.take_string(c_void_p(report.notes))
        result.advisories = c.take_string(c_void_p(report.advisories)).splitlines()
        result.entries = [
            SimpleNamespace(name=entry.name.decode(), **{name: getattr(entry, name)
                                                         for name, _ in c.BuildEntry._fields_[1:]})
            for entry in report.entries[:report.nentries]]
        return result

    def explain(self, spec, *, arch=None, family=None, phase=None, schedule=None, unaligned=False, json=False,
                **maxima):
        """What would run and why, as text (or JSON text). maxima: batch, len_q, len_k as for prepare."""
        text = c_void_p()
        options = self._build_options(arch, family, phase, schedule, unaligned, **maxima)
        spec = _as_spec(spec)  # held over the call: a spec made of text would be freed with its last name
        c.call("qkv_explain", self.handle, spec.handle, byref(options), int(json), byref(text))
        return c.take_string(text)

    def __repr__(self):
        return "<qkv.Engine %s (%s)>" % (self.device.name, self.device.arch)


class _Call:
    """The arguments of one call as C structures, with everything that must stay alive beside them."""

    function = "qkv_attention"
    partial = False  # calls write all of their outputs' elements

    def __init__(self, spec, q, k, v, outputs, sink, params, stream=None):
        params = dict(params)
        arrays = {name: params.pop(name) for name in ARRAYS if params.get(name) is not None}
        scales = {name: params.pop(name) for name in SCALES if params.get(name) is not None}
        maxima = [params.pop(name, 0) for name in ("max_len_q", "max_len_k")]
        expected = {"q": spec._dtype_q, "k": spec._dtype_kv, "v": spec._dtype_kv, "o": spec._dtype_out}
        self.views = {}
        tensors = dict(q=q, k=k, v=v, **outputs)
        if sink is not None:
            tensors["sink"] = sink
        tensors.update(scales)
        tensors.update(arrays)
        expected.update(dict.fromkeys(arrays, c.I32))
        self.args = c.AttentionArgs(max_len_q=maxima[0], max_len_k=maxima[1])
        for name, tensor in tensors.items():
            self._set(name, _tensor.view(tensor, name, expected.get(name), stream))
        self._set_params(spec, params, stream)

    def _set(self, name, view):
        self.views[name] = view
        setattr(self.args, name, view.struct())

    def _set_params(self, spec, params, stream):
        names = [param.name for param in spec.params]
        unknown = sorted(set(params) - set(names))
        if unknown:
            raise TypeError("unknown argument %s; the parameters of %s are: %s" % (
                ", ".join(unknown), spec.name, ", ".join(names) or "none"))
        missing = [name for name in names if name not in params]
        if missing:
            raise TypeError("missing parameter %s of %s" % (", ".join(missing), spec.name))
        self.values = (c.ParamValue * len(names))()
        for n, param in enumerate(spec.params):
            if param.rank == 0:
                self.values[n].value = float(params[param.name])
                continue
            view = _tensor.view(params[param.name], param.name, c.DTYPE_NAMES.index(param.dtype), stream)
            self.views[param.name] = view
            self.values[n].tensor = view.struct()
        self.args.params, self.args.nparams = self.values, len(names)

    def address(self, spec, name, data):
        """Replaces the address of tensor `name`."""
        view = self.views[name]
        names = [param.name for param in spec.params]
        if name in names:
            self.values[names.index(name)].tensor = view.struct(data)
        else:
            setattr(self.args, name, view.struct(data))


def _outputs_for(spec, q, given, dtype_out):
    """The output tensors by name: those passed in, the rest allocated like q."""
    shape, ragged = tuple(q.shape), spec.layout_q == "ragged"
    if len(shape) != (3 if ragged else 4):
        raise c.Error(c.INVALID_ARGUMENT, "q: shape %s is not [%s, heads_q, dim_qk]" % (
            shape, "tokens" if ragged else "batch, len_q"))
    unused = [name for name, tensor in given.items() if tensor is not None and name not in spec.outputs]
    if unused:
        raise c.Error(c.INVALID_ARGUMENT, "%s: not among the outputs of %s (%s)" % (
            unused[0], spec.name, ", ".join(spec.outputs)))
    rows, heads = shape[:-2], shape[-2]
    sums = rows[:-1] + (heads,) + rows[-1:]  # of an LSE: the heads before the tokens
    made = {}
    for name in spec.outputs:
        tensor = given[name]
        if tensor is None:
            form = (rows + (heads, spec.dim_v), dtype_out) if name == "o" else (sums, c.F32)
            tensor = _tensor.empty_like(q, form[0], form[1], name)
        made[name] = tensor
    return made


class Launch:
    """A call with its tensors bound: `launch()` runs it, again and again, at the cost of one C call.

    result    o, or the tuple (o, lse, ...) in the order of spec.outputs
    Host tensors (always so on emu) are copied to device memory before and results back after every run; launch() then
    waits for the device. With GPU tensors it only enqueues and may be captured in a CUDA graph.
    """

    def __init__(self, op, call, outputs, stream, workspace):
        self._op, self._call, self._stream = op, call, stream
        self._workspace = workspace
        self._staged, self._buffers, self._device_addresses = [], [], {}
        op.engine._launches.add(self)
        made = list(outputs.values())
        self.result = made[0] if len(made) == 1 else tuple(made)
        device, on_host = op.engine.device, []
        for name, view in call.views.items():
            self._device_addresses[name] = view.data
            if name in outputs and view.readonly:
                raise c.Error(c.INVALID_ARGUMENT, "%s: the tensor is read-only" % name)
            if view.device == "host":
                on_host.append((name, view))
            elif view.device != device.kind:
                raise c.Error(c.INVALID_ARGUMENT, "%s: lies in %s memory, but the engine's device is %s; open it with "
                                                  "device=\"%s\"" % (name, {"cuda": "GPU"}.get(view.device, view.device),
                                                                     device.kind, view.device))
            elif view.ordinal not in (None, device.ordinal):
                raise c.Error(c.INVALID_ARGUMENT, "%s: lies on cuda:%d, but the engine's device is cuda:%d" % (
                    name, view.ordinal, device.ordinal))
        self._stage(on_host, outputs)
        if workspace is None and op.workspace_bytes:
            self._call.args.workspace = self._allocate(op.workspace_bytes)
            self._call.args.workspace_bytes = op.workspace_bytes
        elif workspace is not None:
            self._call.args.workspace, self._call.args.workspace_bytes = workspace

    def _allocate(self, size):
        pointer = c_void_p()
        c.call("qkv_alloc", self._op.engine.handle, size, byref(pointer))
        # Freed with this object, which keeps the op and so the engine alive; Engine.close frees it before.
        self._buffers.append(weakref.finalize(self, c.libqkv().qkv_free, self._op.engine.handle, pointer))
        return pointer.value

    def _stage(self, tensors, outputs):
        """Gives host tensors twins on the device with the same strides and 16-byte alignment, gaps included. Those that
        overlap have one, as parts of it."""
        twins = []  # [begin, end, tensors]
        for name, view in sorted(tensors, key=lambda item: item[1].data + item[1].span()[0]):
            first, end = (view.data + edge for edge in view.span())
            if end == first:
                self._place(name, 0)
            elif twins and first < twins[-1][1]:
                twins[-1][1] = max(twins[-1][1], end)
                twins[-1][2].append((name, view))
            else:
                twins.append([first, end, [(name, view)]])
        for begin, end, parts in twins:
            lead = begin % 16
            memory = self._allocate(lead + end - begin) + lead
            written = elements = 0
            for name, view in parts:
                self._place(name, memory + view.data - begin)
                written += name in outputs
                elements = c.DTYPE_BYTES[view.dtype]
                for extent in view.shape:
                    elements *= extent
            whole = len(parts) == written == 1 and elements == end - begin and not self._call.partial
            self._staged.append((begin, memory, end - begin, not whole, written > 0))

    def _place(self, name, address):
        self._device_addresses[name] = address
        self._call.address(self._op.spec, name, address)

    def close(self):
        """Frees the device memory of staged tensors and workspace; the launch cannot run again."""
        for buffer in self._buffers:
            buffer()
        self._op = None

    def __call__(self, stream=None):
        """Runs the call; `stream` replaces the one given to bind."""
        engine = self._op.engine.handle
        for host, memory, size, copy_in, _ in self._staged:
            if copy_in:
                c.call("qkv_copy_to_device", engine, memory, host, size)
        stream = self._stream if stream is None else _stream_handle(stream)
        c.call(self._call.function, self._op.handle, byref(self._call.args), stream)
        if self._staged:
            c.call("qkv_synchronize", engine)
        for host, memory, size, _, copy_out in self._staged:
            if copy_out:
                c.call("qkv_copy_to_host", engine, host, memory, size)
        return self.result

    def time(self, repeats=20):
        """(median, fastest, slowest) seconds of one run, measured on the device. Tensors staged from host memory hold
        what the last run left there."""
        seconds = [c_double(), c_double(), c_double()]
        c.call("qkv_time", self._op.handle, byref(self._call.args), self._stream, repeats, *map(byref, seconds))
        return tuple(value.value for value in seconds)

    def work(self):
        """(floating-point operations of the visible pairs, bytes of q k v o)."""
        flops, size = c_double(), c_double()
        # The count is made on the CPU, so what a mask reads must lie there, and lengths.
        names = [param.name for param in self._op.spec.params if param.rank > 0]
        self._ask("qkv_work", names, byref(flops), byref(size))
        return flops.value, size.value

    def check(self):
        """Looks at the arrays of lengths and pages, as a launch cannot: raises Error with the sequence and entry of the
        first fault (qkv_check_sequences)."""
        self._ask("qkv_check_sequences", [])

    def _ask(self, function, names, *results):
        """Calls a function that reads the tensors of these names, and lengths and pages, in host memory."""
        memory = [self._on_host(name) for name in names + [name for name in ARRAYS if name in self._call.views]]
        try:
            c.call(function, self._op.spec.handle, byref(self._call.args), *results)
        finally:
            for name, address in self._device_addresses.items():
                self._call.address(self._op.spec, name, address)
            del memory

    def _on_host(self, name):
        """Points tensor `name` at host memory; returns what must stay alive until it is pointed back."""
        view = self._call.views[name]
        if view.device == "host":
            self._call.address(self._op.spec, name, view.data)
            return view.owner
        first, end = view.span()
        copy = ctypes.create_string_buffer(max(end - first, 1))
        if end > first:
            c.call("qkv_synchronize", self._op.engine.handle)
            c.call("qkv_copy_to_host", self._op.engine.handle, copy, view.data + first, end - first)
        self._call.address(self._op.spec, name, ctypes.addressof(copy) - first)
        return copy


def _stream_handle(stream):
    """An integer, torch.cuda.Stream or cupy.cuda.Stream as an integer handle."""
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return getattr(stream, attribute)
    return int(stream)


class Op(_Handle):
    """The loaded kernels of one spec on one engine. Call it with tensors of any framework.

    q  [batch, len_q, heads_q, dim_qk]      k  [batch, len_k, heads_kv, dim_qk]     v  [batch, len_k, heads_kv, dim_v]
    o  [batch, len_q, heads_q, dim_v]       lse, lse_with_sink  [batch, heads_q, len_q] f32     sink  [heads_q] f32

    Strides are free. spec and engine are attributes; workspace_bytes is what one call may need. Where spec.layout_q or
    spec.layout_kv is not dense, tensors have the shapes of qkv.h (ragged: [tokens, heads, dim], lse [heads, tokens]),
    and calls take i32 arrays cu_seqlens_q, cu_seqlens_k, seqlens_k, page_table, page_indptr, and max_len_q, max_len_k.
    """

    def __init__(self, engine, spec, limits, prepared=None):
        self.engine, self.spec = engine, spec
        pointer = c_void_p(prepared)
        if not prepared:
            c.call("qkv_prepare", engine.handle, spec.handle, byref(limits), byref(pointer))
        self._own(pointer, c.libqkv().qkv_op_free)
        engine._ops.add(self)
        self.workspace_bytes = c.libqkv().qkv_workspace_size(pointer)

    def bind(self, q, k, v, *, out=None, lse=None, lse_with_sink=None, sink=None, stream=None, workspace=None,
             params=None, reuse_plan=False, **more):
        """Describes the tensors once and returns a Launch.

        out, lse, lse_with_sink   where to write; allocated with q's framework when not given
        sink                      [heads_q] f32, when the spec has one
        k_scale, v_scale          [heads_kv] f32, when the spec has kv_scale
        stream                    integer handle or a stream of torch or cupy; default: the current one of q's framework
        workspace                 (address, bytes) of device memory; default: allocated for the Launch
        reuse_plan                the workspace still holds what an earlier call with the same op, sizes and mask
                                  parameters planned (qkv.h: Plans); pass its workspace
        cu_seqlens_q ...          lengths and pages of sequences (see Op); max_len_q, max_len_k: their greatest lengths,
                                  0 where tensors or the maxima of Engine.prepare say them. Rows of no sequence are not
                                  written: what `out` held, or anything in a tensor allocated here
        declared parameters       by keyword (or in the dict `params`): numbers for scalars, tensors for the rest
        """
        self.handle  # refuses when closed, before anything is allocated
        stream = _tensor.current_stream(q) if stream is None else _stream_handle(stream)
        given = {"o": out, "lse": lse, "lse_with_sink": lse_with_sink}
        outputs = _outputs_for(self.spec, q, given, self.spec._dtype_out)
        call = _Call(self.spec, q, k, v, outputs, sink, dict(params or {}, **more), stream)
        if reuse_plan and workspace is None and self.workspace_bytes:
            raise ValueError("reuse_plan needs the workspace of the call that planned")
        call.args.reuse_plan = int(reuse_plan)
        return Launch(self, call, outputs, stream, workspace)

    def __call__(self, q, k, v, **arguments):
        """Runs the attention and returns o, or (o, lse, ...) in the order of spec.outputs. Arguments as of bind."""
        return self.bind(q, k, v, **arguments)()

    def merge(self, states, *, out=None, lse=None, stream=None):
        """Attention over all keys from that over disjoint ones, by an op prepared with phase="merge" (qkv.h: Merging).

        states    [(o, lse), ...] as calls over some of the keys return them, 1 to 48; o in f16, bf16 or f32; lse = -inf
                  where a row has no keys
        out, lse  where to write, tensors of a state too; allocated like the first state when not given
        Returns (o, lse).
        """
        self.handle  # refuses when closed, before anything is allocated
        states, outputs = _merge.outputs_for(self.spec, states, out, lse, self.spec._dtype_out)
        stream = _tensor.current_stream(states[0][0]) if stream is None else _stream_handle(stream)
        return Launch(self, _merge.MergeCall(self.spec, states, outputs, stream), outputs, stream, None)()

    def bind_append(self, *, stream=None, **arguments):
        """Describes the tensors of an append once and returns a Launch. Arguments as of append."""
        self.handle  # refuses when closed, before anything is allocated
        call, outputs = _append.describe(self.spec, arguments, stream)
        launch = Launch(self, call, outputs, call.stream, None)
        launch.result = outputs.get("q_out")
        return launch

    def append(self, **arguments):
        """New keys and values into the cache, by an op prepared with phase="append" (qkv.h: Append). Returns q_out, or
        None where the spec leaves queries alone.

        q, k, v or qkv          rows of new queries, keys and values; or those of a fused projection
        k_cache, v_cache        the cache, written in place
        q_out                   where turned queries go; allocated when not given. It may be q, or that part of qkv
        slots, positions, q_norm, k_norm, cos_sin, frequencies, rope_factor, k_scale, v_scale, cu_seqlens_q,
        cu_seqlens_k, seqlens_k, page_table, page_indptr      as the spec's rope and append need them
        stream                  as of bind
        """
        return self.bind_append(**arguments)()

    def __repr__(self):
        return "<qkv.Op %s on %s>" % (self.spec.name, self.engine.device.name)


_engines = {}


def load(spec, device="auto", *, engine=None, **limits):
    """Loads a spec (path, text with a newline, or Spec) and prepares it: `op = qkv.load("spec.yaml"); o = op(q, k, v)`.

    The engine of a device is opened once and shared by all calls; pass engine= to use your own. Other arguments are
    those of Engine.prepare.
    """
    if engine is None:
        engine = _engines.get(device)
        if engine is None:
            engine = _engines[device] = Engine(device)
    return engine.prepare(spec, **limits)


class _MaskCall(_Call):
    """The arguments of a question about a mask: extents of q and k, and the parameters."""

    def __init__(self, spec, batch, len_q, len_k, params):
        self.views, self.args = {}, c.AttentionArgs()
        for name, extents in ("q", (batch, len_q, spec.heads_q, spec.dim_qk)), ("k", (batch, len_k, spec.heads_kv,
                                                                                       spec.dim_qk)):
            tensor = getattr(self.args, name)
            tensor.rank, tensor.shape = 4, (c_int64 * c.MAX_RANK)(*extents)
        self._set_params(spec, params, None)
        for name, view in self.views.items():
            if view.device != "host":
                raise c.Error(c.INVALID_ARGUMENT, "%s: masks are asked with parameters in host memory" % name)


def visible(spec, len_q, len_k, *, batch=1, entry=0, head=0, params=None, **more):
    """Which keys each query sees, for query head `head` of batch entry `entry`: a memoryview of bools [len_q, len_k],
    which numpy.asarray takes as it is (flat when it is empty). Parameters as of Op.__call__."""
    spec = _as_spec(spec)
    call = _MaskCall(spec, batch, len_q, len_k, dict(params or {}, **more))
    pairs = bytearray(len_q * len_k)
    c.call("qkv_visible", spec.handle, byref(call.args), entry, head, (ctypes.c_char * len(pairs)).from_buffer(pairs))
    return memoryview(pairs).cast("?", (len_q, len_k)) if pairs else memoryview(pairs)


def map_mask(spec, len_q, len_k, tile, *, batch=1, entry=0, head=0, params=None, **more):
    """The mask of one head cut into tiles of (queries, keys). Returns an object with

    planned   what kernels do with each tile, a memoryview [rows, columns]: 0 skipped, 1 partial, 2 full
    actual    what would do, found by asking the mask for every pair
    visible   the number of visible pairs
    analysis  the form derived from the mask and its bounds, as text
    dilation  1, or d when tiles hold tokens of one residue modulo d: first the rows of queries 0, d, 2 d ..., each over
              keys of their residue, then those of queries 1, d + 1 ...
    """
    spec = _as_spec(spec)
    call = _MaskCall(spec, batch, len_q, len_k, dict(params or {}, **more))
    found = c.MaskMap(batch=entry, head=head, tile_q=tile[0], tile_k=tile[1], most=2.0**62)
    c.call("qkv_map_mask", None, spec.handle, None, byref(call.args), byref(found))
    try:
        count, form = found.rows * found.columns, (found.rows, found.columns)
        planned, actual = (memoryview(ctypes.string_at(tiles, count)).cast("B", form) if count else memoryview(b"")
                           for tiles in (found.planned, found.actual))
        return SimpleNamespace(planned=planned, actual=actual, visible=found.visible,
                               analysis=ctypes.string_at(found.analysis).decode(), dilation=found.dilation)
    finally:
        c.libqkv().qkv_mask_map_free(byref(found))


def reference(spec, q, k, v, *, out=None, lse=None, lse_with_sink=None, sink=None, params=None, **more):
    """The same computation in f64 on the CPU: the definition of right. All tensors in host memory; results are f32.

    Slow: O(batch heads len_q len_k dim). Arguments and result as of Op.__call__.
    """
    spec = _as_spec(spec)
    outputs = _outputs_for(spec, q, {"o": out, "lse": lse, "lse_with_sink": lse_with_sink}, c.F32)
    call = _Call(spec, q, k, v, outputs, sink, dict(params or {}, **more))
    for name, view in call.views.items():
        if view.device != "host":
            raise c.Error(c.INVALID_ARGUMENT, "%s: the reference needs tensors in host memory" % name)
    c.call("qkv_reference", spec.handle, byref(call.args))
    made = [outputs[name] for name in spec.outputs]
    return made[0] if len(made) == 1 else tuple(made)
