"""The dashboards as Grafana reads them: their panels, and the queries that they come to with the variables filled in."""

import json

from processes import ROOT

FOLDER = ROOT / "config" / "grafana" / "dashboards"
# As in `from` to `to` of the dashboards' own default, but for a run that is over in a minute.
INTERVALS = {"__rate_interval": "30s", "__interval": "5s", "__range": "5m"}


def dashboards():
    """All of them, by their uid."""
    found = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in found}


def panels(dashboard):
    """Those that show something; rows are titles alone."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels", [])
        if panel["type"] != "row":
            yield panel


def variables(dashboard):
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def filled(query, dashboard, **values):
    """A query with its variables filled in: any value, where nothing else is said."""
    values = {name: ".*" for name in variables(dashboard)} | INTERVALS | values
    for name in sorted(values, key=len, reverse=True):
        query = query.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    return query
