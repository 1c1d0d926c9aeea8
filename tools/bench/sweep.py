"""Sweep files: which schedules to measure on which shapes.

    # dims       mask          | schedule
    d128 t4096   full          | tile_m=128,tile_n={96,128},stages=2
    d{64,128}    {full,causal} | default
    d192/128 h128 b1 t8192 causal | tile_m=128,tile_n=128
    specs/gemma2_9b_local.yaml:prefill_4k | tile_n=64

Left of the bar: either words of a plain shape in any order, or SPEC.yaml:WORKLOAD. The words are dDIM or dQK/V, tLENGTH
(keys and queries), kLENGTH (keys alone), bBATCH, hHEADS or hQUERY/KV, full or causal, bf16 or f16; what is left out
follows the command line. Right of the bar: a schedule as in --schedule, or "default". Braces expand as in a shell, on
either side. A # starts a comment."""

import collections
import re

from . import shapes

DEFAULT = "default"
_WORD = re.compile(r"(?P<key>[dtkbh])(?P<first>[1-9][0-9]*)(?:/(?P<second>[1-9][0-9]*))?")
_PAIRS = "dh"  # the keys that may have two numbers
_SPEC = re.compile(r"(?P<spec>\S+\.yaml):(?P<workload>\w+)")
_BRACES = re.compile(r"\{([^{}]*)\}")


class SweepError(ValueError):
    """Text: "FILE:LINE: what is wrong"."""


def expand(text):
    """All texts that the braces of `text` stand for, in order."""
    braces = _BRACES.search(text)
    if not braces:
        return [text]
    return [one for option in braces.group(1).split(",")
            for one in expand(text[:braces.start()] + option.strip() + text[braces.end():])]


def parse_shape(text, **defaults):
    """A Shape from words; `defaults` are arguments of shapes.plain. Raises ValueError."""
    made = dict(defaults, length=4096, mask=None)
    len_k = None
    for word in text.split():
        match = _WORD.fullmatch(word)
        if word in shapes.MASKS:
            made["mask"] = word
        elif word in shapes.DTYPES:
            made["dtype"] = word
        elif not match or (match["second"] and match["key"] not in _PAIRS):
            raise ValueError("'%s' is no word of a shape" % word)
        else:
            first, second = int(match["first"]), int(match["second"] or match["first"])
            if match["key"] == "k":
                len_k = first
            made.update({"d": {"dim": first, "dim_v": second}, "t": {"length": first}, "b": {"batch": first},
                         "h": {"heads": first, "heads_kv": second}, "k": {}}[match["key"]])
    if "dim" not in made or made["mask"] is None:
        raise ValueError("a shape needs a head dim (d128) and a mask (full or causal)")
    shape = shapes.plain(**made)
    return shape._replace(len_k=len_k or shape.len_k)


def _workload(text, defaults):
    spec = _SPEC.fullmatch(text)
    return (spec["spec"], spec["workload"]) if spec else parse_shape(text, **defaults)


def parse(text, name="sweep", **defaults):
    """{workload: [schedule, ...]} in the order of the file, without repetitions. A workload is a Shape or the pair
    (path of a spec, name of its workload); a schedule is a text, or None for the library's own. Raises SweepError."""
    found = collections.OrderedDict()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        left, bar, right = (part.strip() for part in line.partition("|"))
        try:
            if not bar or not right:
                raise ValueError("no schedule after '|'; write 'default' for the library's own")
            for workload in [_workload(one, defaults) for one in expand(left)]:
                for schedule in expand("".join(right.split())):
                    schedules = found.setdefault(workload, [])
                    if (schedule if schedule != DEFAULT else None) not in schedules:
                        schedules.append(schedule if schedule != DEFAULT else None)
        except ValueError as error:
            raise SweepError("%s:%d: %s" % (name, number, error)) from None
    if not found:
        raise SweepError("%s: no line of the form 'd128 full | tile_m=128,...'" % name)
    return found
