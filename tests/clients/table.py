"""table.py PYTHON.xml NODE.xml DOCUMENT: the table of clients and features from what has run. The document must hold the same one."""

import json
import pathlib
import sys
import xml.etree.ElementTree as xml

BEGIN, END = "<!-- table: tests/clients/run compares it -->\n", "<!-- end of table -->\n"
NODE = "openai (Node)"


def results(python, node, lock):
    """(client, version, feature, passed) of each test."""
    for case in xml.parse(python).iter("testcase"):
        properties = [(one.get("name"), one.get("value")) for one in case.iter("property")]
        known = dict(properties)
        for name, value in properties:
            if name == "feature":
                passed = not any(case.find(bad) is not None for bad in ("failure", "error", "skipped"))
                yield known["client"], known["version"], value, passed
    version = json.loads(pathlib.Path(lock).read_text())["packages"]["node_modules/openai"]["version"]
    for suite in xml.parse(node).iter("testsuite"):
        for case in suite.findall("testcase"):
            yield NODE, version, suite.get("name"), case.find("failure") is None and case.find("skipped") is None


def table(found):
    clients = list(dict.fromkeys((client, version) for client, version, _, _ in found))
    clients.sort(key=lambda client: (not client[0].startswith("openai"), not client[0].endswith("(Python)"), client))
    features = list(dict.fromkeys(feature for _, _, feature, _ in found))
    cells = {}
    for client, version, feature, passed in found:
        cell = (client, version), feature
        cells[cell] = cells.get(cell, True) and passed
    lines = [f"| | {' | '.join(f'{client} {version}' for client, version in clients)} |", f"| --- |{' --- |' * len(clients)}"]
    for feature in features:
        words = [{None: "", True: "yes", False: "NO"}[cells.get((client, feature))] for client in clients]
        lines.append(f"| {feature} | {' | '.join(words)} |")
    return "".join(f"{line}\n" for line in lines)


def main(python, node, document):
    lock = pathlib.Path(__file__).parent / "node" / "package-lock.json"
    ran = table(sorted(results(python, node, lock), key=lambda one: not one[0].startswith("openai (Py")))
    text = pathlib.Path(document).read_text()
    print(ran)
    if text.partition(BEGIN)[2].partition(END)[0].strip() != ran.strip():
        sys.exit(f"{document} holds another table: put the one above between its two marks")


main(*sys.argv[1:])
