"""From figures of repetitions to tables."""

import statistics
import sys

from peers import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from rig import table

NONE = "–"
# What ratios are taken to.
BASE = "haproxy"


def half_range(values):
    return (max(values) - min(values)) / 2


def around(values, digits=1):
    """Median and half of the range."""
    return f"{statistics.median(values):.{digits}f} ± {half_range(values):.{digits}f}" if values else NONE


def median(values, digits=0):
    return f"{statistics.median(values):.{digits}f}" if values else NONE


def ratio(values):
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else NONE


def show(head, rows, markdown):
    print((table.markdown if markdown else table.text)(head, rows), flush=True)


class Repetitions:
    """Figures by what was measured and, as they are compared within it, by repetition."""

    def __init__(self):
        self.found = {}

    def add(self, name, workload, repetition, figures):
        self.found.setdefault((name, workload), {})[repetition] = figures

    def has(self, name, workload):
        return (name, workload) in self.found

    def values(self, name, workload, figure):
        return [figures[figure] for figures in self.found.get((name, workload), {}).values()]

    def beside(self, name, other, workload, figure, combine):
        """`combine` of this and of the other's in the same repetition, for those that have both."""
        own, others = self.found.get((name, workload), {}), self.found.get((other, workload), {})
        pairs = [(own[repetition][figure], others[repetition][figure]) for repetition in sorted(own.keys() & others.keys())]
        return [combine(one, two) for one, two in pairs]

    def added(self, name, workload, figure):
        return [] if name == "direct" else self.beside(name, "direct", workload, figure, lambda one, two: one - two)

    def ratios(self, name, workload, figure="cpu_us", other=BASE):
        return self.beside(name, other, workload, figure, lambda one, two: one / two if two else float("nan"))


HEAD = [
    "target", "CPU µs/request", f"× {BASE}", "requests/s", "core used", "added p50 ms", "added p99 ms", "added first byte ms",
    "CPU µs at rate", "MiB", "replicas/prefix", "errors",
]  # fmt: skip


def row(name, workload, results):
    values = lambda figure: results.values(name, workload, figure)
    proxy = name != "direct"
    return [
        name,
        around(values("cpu_us")) if proxy else NONE,
        ratio(results.ratios(name, workload)) if proxy else NONE,
        around(values("rps"), 0),
        median(values("util"), 2) if proxy else NONE,
        around(results.added(name, workload, "p50"), 3),
        around(results.added(name, workload, "p99"), 3),
        around(results.added(name, workload, "first50"), 3),
        median(values("rate_cpu_us")) if proxy else NONE,
        median([value / 2**20 for value in values("resident")]) if proxy else NONE,
        median(values("affinity"), 2) if proxy else NONE,
        sum(values("errors")) + sum(values("rate_errors")),
    ]


def tell_table(names, workloads, results, markdown):
    for workload in workloads:
        print(f"\n{'### ' if markdown else '== '}{workload}\n")
        show(HEAD, [row(name, workload, results) for name in names if results.has(name, workload)], markdown)
    # All workloads at a glance, one row for each target.
    print(f"\n{'### ' if markdown else '== '}CPU per request, × {BASE}\n")
    compared = [name for name in names if name != "direct" and any(results.has(name, workload) for workload in workloads)]
    show(["target", *workloads], [[name, *(ratio(results.ratios(name, workload)) for workload in workloads)] for name in compared], markdown)
