"""The figures of the workloads, from a file of JSON lines to a line or a table: `figures.py RESULTS [--markdown]`."""

import json
import pathlib
import sys

NONE = "–"


def read(file):
    return [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()]


def title(strategy, routers):
    return strategy if routers == 1 else f"{routers}x{strategy}"


def forecast_error(result):
    """What was predicted beyond what was observed, as a part of that; None where nobody predicts."""
    kinds = (result["forecast"] or {}).values()
    predicted, observed = (sum(kind[key] for kind in kinds) for key in ("predicted", "observed"))
    if observed:
        return predicted / observed - 1
    return float("inf") if predicted else None


def forecast(result):
    off = forecast_error(result)
    if off is None:
        return NONE
    return f"{off:+.1%}; " + ", ".join(f"{replica} {kind['predicted']:,} of {kind['observed']:,}" for replica, kind in result["forecast"].items())


def share(result):
    return " ".join(f"{replica} {part:.0%}" for replica, part in result["share"].items())


def line(result):
    ttft, e2e = result["ttft_ms"], result["e2e_ms"]
    return (
        f"TTFT p50 {ttft['p50']:.0f} p90 {ttft['p90']:.0f} ms, end to end p50 {e2e['p50']:.0f} p90 {e2e['p90']:.0f} ms, "
        f"{result['requests_per_second']:.2f} requests/s, token hit rate {result['token_hit_rate']:.1%}, share {share(result)}, "
        f"overflow {result['overflow']}, client aborts {result['client_aborts']}"
    )


HEAD = ["workload", "seed", "strategy", "found in cache", "TTFT p50 / p90 ms", "requests/s", "share", "overflow", "predicted of what was found"]


def row(result):
    ttft = result["ttft_ms"]
    return [
        result["workload"], result["seed"], title(result["strategy"], result["routers"]), f"{result['token_hit_rate']:.1%}", f"{ttft['p50']:,.0f} / {ttft['p90']:,.0f}",
        f"{result['requests_per_second']:.1f}", share(result), result["overflow"], forecast(result),
    ]  # fmt: skip


def main():
    from rig import table

    # Workload by workload, each in the order of its measurement.
    results = sorted(read(sys.argv[1]), key=lambda result: result["workload"], reverse=True)
    print((table.markdown if "--markdown" in sys.argv else table.text)(HEAD, [row(result) for result in results]))


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    main()
