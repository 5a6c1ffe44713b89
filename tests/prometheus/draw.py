"""Runs a demo in phases, asks its Prometheus what each panel of the dashboards asks, and draws the panels where Grafana would put them."""

import argparse
import math
import pathlib
import signal
import sys
import tempfile
import time

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dashboards import dashboards, filled, panels
from processes import Processes

# In inches: a column and a row of Grafana's grid, the space between panels, the title of a picture, and what is said under it.
COLUMN, ROW, GAP, TOP, BOTTOM = 0.62, 0.26, 0.07, 0.62, 0.42
INK, FAINT, PAPER, FRAME = "#24292f", "#6e7781", "#f6f8fa", "#d0d7de"
STEP = 2
INTERVALS = {"__rate_interval": "16s", "__interval": "2s"}
# Greys and tints of one colour, for series whose names are not known before.
SHADES = (1.0, 0.6, 0.35, 0.8)


class Demo:
    """What the pictures show: docs/dashboards.md lists the phases."""

    MODELS = ["chat", "chat", "chat", "code", "code"]

    def __init__(self, processes):
        self.processes = processes

    def replica(self, number, model, port=0):
        # A slow one with a small cache: what is computed, and who waits for it, is to be seen with few requests.
        cost = {"step": 0.03, "prefill_token": 0.0001, "decode_sequence": 0.0008}
        engine = {"blocks": 5000, "max_model_len": 8192, "cost": cost}
        return self.processes.replica(f"r{number}", model, port, **engine)

    def run(self):
        processes = self.processes
        urls = {number: self.replica(number, model) for number, model in enumerate(self.MODELS, 1)}
        replicas = [f"{url};name=r{number};models={self.MODELS[number - 1]}" for number, url in urls.items()]
        one = processes.router("router-1", replicas)
        other = processes.router("router-2", replicas, strategy="cache_aware", hold="20ms")
        prometheus = processes.prometheus({"router-1": one[1], "router-2": other[1]})
        begun = time.time()

        def until(seconds):
            time.sleep(max(0, begun + seconds - time.time()))

        load = {"model": ["chat", "code"], "documents": 60, "skew": 1.5, "document_characters": 8000, "tokens": 24}
        processes.load("calm", [one[0], other[0]], rate=12, **load)
        until(90)
        processes.load("hot", [one[0], other[0]], rate=30, hot=1, **load | {"model": ["chat"]})
        until(150)
        processes.end("hot")
        until(180)
        processes.kill("r2")
        until(220)
        self.replica(2, self.MODELS[1], int(urls[2].rsplit(":", 1)[1]))
        until(300)
        return prometheus, begun, time.time()


def shown(value, unit, decimals=None):
    """A number as Grafana shows it."""
    if value is None or math.isnan(value):
        return "–"
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s":
        for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms")):
            if 0 < abs(value) < limit:
                return f"{value * factor:.3g} {name}"
        return f"{value:.3g} s"
    if unit == "MiB":
        return f"{value:.3g} MiB"
    if decimals is not None:
        text = f"{value:.{decimals}f}"
    elif abs(value) >= 1000:
        text = f"{value / 1000:.3g} K"
    else:
        text = f"{value:.3g}"
    return f"{text} /s" if unit == "reqps" else text


def tinted(colour, amount):
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return tuple(1 - amount * (1 - part) for part in (red, green, blue))


class Picture:
    def __init__(self, dashboard, prometheus, begun, ended, values):
        self.dashboard, self.prometheus, self.begun, self.ended, self.values = dashboard, prometheus, begun, ended, values
        self.rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
        self.width, self.height = 24 * COLUMN + 2 * GAP, self.rows * ROW + TOP + BOTTOM
        self.figure = plt.figure(figsize=(self.width, self.height), facecolor="white")

    def box(self, x, y, width, height):
        """Axes at a place in inches from the top left."""
        return self.figure.add_axes((x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height))

    def text(self, x, y, text, **style):
        return self.figure.text(x / self.width, 1 - y / self.height, text, **{"color": INK, "va": "center", "fontsize": 9} | style)

    def query(self, expr):
        return filled(expr, self.dashboard, **INTERVALS | self.values)

    def series(self, target):
        """Times, and values by legend."""
        found = self.prometheus.get("query_range", query=self.query(target["expr"]), start=self.begun, end=self.ended, step=STEP)["result"]
        for one in found:
            legend = target["legendFormat"]
            for label, value in one["metric"].items():
                legend = legend.replace("{{" + label + "}}", value)
            points = {round((at - self.begun) / STEP): float(value) for at, value in one["values"]}
            count = int((self.ended - self.begun) / STEP) + 1
            yield legend, one["metric"], [points.get(place, math.nan) for place in range(count)]

    def draw(self, file):
        self.text(GAP + 0.06, TOP * 0.34, self.dashboard["title"], fontsize=15, weight="bold")
        self.text(GAP + 0.06, TOP * 0.74, self.dashboard["description"], fontsize=9.5, color=FAINT)
        for panel in self.dashboard["panels"]:
            place = panel["gridPos"]
            x, y = place["x"] * COLUMN + GAP, place["y"] * ROW + TOP
            width, height = place["w"] * COLUMN, place["h"] * ROW
            if panel["type"] == "row":
                self.text(x + 0.06, y + height / 2, panel["title"], fontsize=11.5, weight="bold")
                continue
            inner = (x + GAP / 2, y + GAP / 2, width - GAP, height - GAP)
            frame = self.box(*inner)
            frame.set_axis_off()
            frame.add_patch(FancyBboxPatch((0, 0), 1, 1, transform=frame.transAxes, boxstyle="square,pad=0", facecolor=PAPER, edgecolor=FRAME, linewidth=0.8))
            self.text(inner[0] + 0.1, inner[1] + 0.14, panel["title"], weight="bold", fontsize=9)
            {"stat": self.stat, "table": self.table, "timeseries": self.lines}[panel["type"]](panel, *inner)
        minutes = (self.ended - self.begun) / 60
        chosen = "".join(f" ${name} is {value}." for name, value in self.values.items())
        note = f"Drawn by tests/prometheus/draw from this dashboard's own queries, asked of a Prometheus that watched {minutes:.0f} minutes of simulated replicas under load.{chosen} Times are minutes."
        self.text(GAP + 0.06, self.height - BOTTOM / 2, note, fontsize=8.5, color=FAINT)
        plt.rcParams["svg.fonttype"] = "none"
        plt.rcParams["svg.hashsalt"] = "prefix-router"
        self.figure.savefig(file, metadata={"Date": None})
        plt.close(self.figure)

    def stat(self, panel, x, y, width, height):
        defaults = panel["fieldConfig"]["defaults"]
        found = list(self.series(panel["targets"][0]))
        values = [value for _, _, points in found for value in points[-1:]]
        if panel["options"]["textMode"] == "name":
            text = ", ".join(labels["state"] for _, labels, points in found if not math.isnan(points[-1]))
        else:
            text = shown(values[0] if values else None, defaults["unit"], defaults.get("decimals"))
        steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or values and values[0] >= step["value"]]
        colour = steps[-1]["color"]
        self.text(x + width / 2, y + height * 0.55, text, fontsize=19, weight="bold", color=colour, ha="center")
        if found and panel["options"]["textMode"] != "name":
            axes = self.box(x + 0.02, y + height * 0.76, width - 0.04, height * 0.22)
            axes.set_axis_off()
            axes.fill_between(range(len(found[0][2])), found[0][2], color=colour, alpha=0.3, linewidth=0)
            axes.set_xlim(0, len(found[0][2]) - 1)
            axes.set_ylim(bottom=0)

    def lines(self, panel, x, y, width, height):
        defaults = panel["fieldConfig"]["defaults"]
        custom, unit = defaults["custom"], defaults["unit"]
        styles = {override["matcher"]["options"]: {one["id"]: one["value"] for one in override["properties"]} for override in panel["fieldConfig"]["overrides"]}
        order = list(styles)
        found = [one for target in panel["targets"] for one in self.series(target)]
        if unit == "reqps" or custom["stacking"]["mode"] != "none":
            # What never happened needs no place in the legend.
            found = [one for one in found if any(value > 0 for value in one[2])]
        if unit == "bytes":
            # So that the axis has round numbers.
            unit, found = "MiB", [(legend, labels, [value / 2**20 for value in points]) for legend, labels, points in found]
        found.sort(key=lambda one: (order.index(one[0]) if one[0] in order else len(order), one[0]))
        axes = self.box(x + 0.62, y + 0.34, width - 0.76, height - 0.92)
        axes.set_facecolor("white")
        minutes = [place * STEP / 60 for place in range(int((self.ended - self.begun) / STEP) + 1)]
        colours = []
        for number, (legend, _, _) in enumerate(found):
            colour = styles.get(legend, {}).get("color", defaults["color"])["fixedColor"]
            colours.append(tinted(colour, SHADES[number % len(SHADES)]) if defaults["color"]["mode"] == "shades" else colour)
        if custom["stacking"]["mode"] != "none":
            layers = [[0 if math.isnan(value) else value for value in points] for _, _, points in found]
            axes.stackplot(minutes, layers, colors=colours, alpha=0.85, step="post" if custom["lineInterpolation"] == "stepAfter" else None, linewidth=0) if layers else None
        else:
            for (legend, _, points), colour in zip(found, colours):
                dashed = "custom.lineStyle" in styles.get(legend, {})
                kind = "steps-post" if custom["lineInterpolation"] == "stepAfter" else "default"
                axes.plot(minutes, points, color=colour, linewidth=1.5, linestyle=(0, (4, 2.5)) if dashed else "-", drawstyle=kind)
        low = min([0.0, *(value for _, _, points in found for value in points if not math.isnan(value))])
        if custom.get("thresholdsStyle"):
            limit = defaults["thresholds"]["steps"][-1]
            axes.axhline(limit["value"], color=limit["color"], linewidth=1, linestyle=(0, (1, 1.5)))
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.1 * limit["value"]))
        axes.set_xlim(0, minutes[-1])
        axes.set_ylim(bottom=low * 1.05, top=defaults.get("max", None if axes.get_ylim()[1] > 0 else 1))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=defaults.get("decimals") == 0))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit, defaults.get("decimals"))))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.tick_params(labelsize=7.5, colors=FAINT, length=0)
        axes.grid(color="#e7ebef", linewidth=0.7)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if not found:
            axes.set_yticks([])
            axes.text(0.5, 0.5, "nothing happened", transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=9)
        self.legend([legend for legend, _, _ in found], colours, x + 0.14, y + height - 0.2, width - 0.2)

    def legend(self, names, colours, x, y, width):
        end = x + width
        for name, colour in zip(names, colours):
            mark = self.text(x, y, "■", color=colour, fontsize=9)
            word = self.text(x + 0.13, y, name, fontsize=8)
            x += 0.13 + word.get_window_extent().width / self.figure.dpi + 0.16
            if x - 0.16 > end:
                word.set_text("…")
                mark.remove()
                break

    def table(self, panel, x, y, width, height):
        renamed = panel["transformations"][1]["options"]["renameByName"]
        properties = {override["matcher"]["options"]: {one["id"]: one["value"] for one in override["properties"]} for override in panel["fieldConfig"]["overrides"]}
        rows = {}
        for target in panel["targets"]:
            found = self.prometheus.get("query", query=self.query(target["expr"]), time=self.ended)["result"]
            for one in found:
                rows.setdefault(one["metric"]["replica"], {})[renamed[f"Value #{target['refId']}"]] = float(one["value"][1])
        columns = [renamed[f"Value #{target['refId']}"] for target in panel["targets"]]
        left = [x + 0.15, *(x + 0.15 + width * (0.1 + 0.9 * number / len(columns)) for number in range(len(columns)))]
        for place, name in zip(left, ["Replica", *columns]):
            self.text(place, y + 0.42, name, fontsize=8.5, color=FAINT, weight="bold")
        for number, (name, values) in enumerate(sorted(rows.items())):
            line = y + 0.66 + 0.22 * number
            self.text(left[0], line, name, color="#0072B2", fontsize=9)
            for place, column in zip(left[1:], columns):
                own = properties.get(column, {})
                value, colour = values.get(column), INK
                text = shown(value, own.get("unit", "none"), own.get("decimals"))
                for mapping in own.get("mappings", []):
                    if value is not None and (meant := mapping["options"].get(f"{value:.0f}")):
                        text, colour = meant["text"], meant["color"]
                self.text(place, line, text, fontsize=9, color=colour)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", required=True)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    plt.rcParams["font.family"] = ["DejaVu Sans", "sans-serif"]
    with tempfile.TemporaryDirectory() as folder, Processes(folder, arguments.router, arguments.prometheus) as processes:
        prometheus, begun, ended = Demo(processes).run()
        for uid, dashboard in dashboards().items():
            values = {"replica": "r2"} if "replica" in uid else {}
            Picture(dashboard, prometheus, begun, ended, values).draw(arguments.out / f"{uid.removeprefix('prefix-router-')}.{arguments.format}")


if __name__ == "__main__":
    main()
