"""Tables as text and as Markdown."""


def text(head, rows):
    widths = [max(len(str(row[column])) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown(head, rows):
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in [head, *rows]]
    lines.insert(1, "|" + " --- |" * len(head))
    return "\n".join(lines)


def seconds(value):
    return "–" if value is None else f"{value:.1f} s"
