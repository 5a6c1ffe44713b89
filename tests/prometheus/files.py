"""What Grafana, Prometheus and Docker are to read: that it can be read, that nothing is missing, and that what is referred to is there."""

import re

import yaml

from dashboards import dashboards, panels, variables
from processes import ROOT, RULES

# Okabe and Ito's colours, which those see apart who see colours otherwise, and grey.
PALETTE = {"#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#F0E442", "#000000", "#999999"}


def read(path):
    return yaml.safe_load((ROOT / path).read_text())


def keys_of(value, wanted):
    """All values under that key, wherever they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == wanted:
                yield inner
            yield from keys_of(inner, wanted)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, wanted)


def heading(text):
    """A heading's address on its page, as GitHub and others make it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def check_rules():
    page = (ROOT / "docs/alerts.md").read_text()
    paragraphs = {heading(found) for found in re.findall(r"^#+ (.*)$", page, re.M)}
    alerts = [rule for file in RULES.glob("*.yml") for group in read(file)["groups"] for rule in group["rules"] if "alert" in rule]
    for rule in alerts:
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert notes["summary"] and notes["description"], name
        target, _, paragraph = notes["runbook_url"].partition("#")
        assert target == "docs/alerts.md" and paragraph in paragraphs, f"{name}: {notes['runbook_url']} is not there"
    told = set(re.findall(r"^## (PrefixRouter\w+)$", page, re.M))
    assert told == {rule["alert"] for rule in alerts}, told ^ {rule["alert"] for rule in alerts}
    return len(alerts)


def check_dashboards():
    found = dashboards()
    count = 0
    for dashboard in found.values():
        name, shown = dashboard["title"], list(panels(dashboard))
        ids = [panel["id"] for panel in [*dashboard["panels"], *(inner for row in dashboard["panels"] for inner in row.get("panels", []))]]
        assert len(ids) == len(set(ids)), f"{name}: ids are there twice"
        assert dashboard["schemaVersion"] >= 39 and dashboard["id"] is None, name
        titles = [panel["title"] for panel in shown]
        assert len(titles) == len(set(titles)), f"{name}: titles are there twice"
        for panel in shown:
            where = f"{name}, {panel.get('title')}"
            assert panel["title"] and len(panel["description"]) > 40, where
            assert panel["targets"] and all(target["expr"].strip() for target in panel["targets"]), where
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), where
            defaults = panel["fieldConfig"]["defaults"]
            assert "unit" in defaults, f"{where}: it has no unit"
            place = panel["gridPos"]
            assert 0 <= place["x"] and place["x"] + place["w"] <= 24, where
            for used in re.findall(r"\$\{?(\w+)", " ".join(target["expr"] for target in panel["targets"])):
                assert used in variables(dashboard) or used.startswith("__"), f"{where}: ${used} is no variable"
            count += 1
        places = [(panel["gridPos"], panel["title"]) for panel in shown]
        for at, (one, title) in enumerate(places):
            for other, another in places[:at]:
                apart = (
                    one["x"] + one["w"] <= other["x"]
                    or other["x"] + other["w"] <= one["x"]
                    or one["y"] + one["h"] <= other["y"]
                    or other["y"] + other["h"] <= one["y"]
                )
                assert apart, f"{name}: {title} lies over {another}"
        colours = {colour for colour in (*keys_of(dashboard, "fixedColor"), *keys_of(dashboard, "color")) if isinstance(colour, str)}
        assert colours - {"transparent"} <= PALETTE, f"{name}: {colours - PALETTE}"
        for url in keys_of(dashboard, "url"):
            uid, _, query = url.removeprefix("/d/").partition("?")
            assert uid in found, f"{name}: {url} leads nowhere"
            for variable in re.findall(r"var-(\w+)=", query):
                assert variable in variables(found[uid]), f"{name}: {url} sets {variable}, which is no variable there"
        for source in keys_of(dashboard, "datasource"):
            assert source["uid"] in ("${datasource}", "-- Grafana --"), f"{name}: {source}"
    return len(found), count


def check_deployment():
    """Compose file and provisioning agree with each other and with what is here."""
    services = read("docker-compose.yml")["services"]
    mounts = {name: [mount.split(":") for mount in service.get("volumes", [])] for name, service in services.items()}
    for name, own in mounts.items():
        for source, *_ in own:
            assert not source.startswith("./") or (ROOT / source).exists(), f"{name}: {source} is not there"
    inside = {target: source for source, target, *_ in mounts["grafana"]}
    folders = [provider["options"]["path"] for provider in read("config/grafana/provisioning/dashboards/prefix-router.yml")["providers"]]
    assert all(any(folder.startswith(target) for target in inside) for folder in folders), (folders, inside)
    sources = read("config/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert any(source["type"] == "prometheus" and source["url"] == "http://prometheus:9090" for source in sources), sources
    prometheus = {target: source for source, target, *_ in mounts["prometheus"]}
    assert prometheus["/etc/prometheus/rules"] == "./config/rules" and read("config/prometheus.yml")["rule_files"] == ["rules/*.yml"]


def main():
    alerts = check_rules()
    print(f"ok  {alerts} alerts have a severity, texts and their paragraph", flush=True)
    boards, count = check_dashboards()
    print(f"ok  {boards} dashboards with {count} panels: titles, texts, units, queries, places, colours, links", flush=True)
    check_deployment()
    print("ok  docker-compose.yml and what it mounts", flush=True)


if __name__ == "__main__":
    main()
