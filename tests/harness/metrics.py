"""Reads a page of Prometheus text."""

import re

LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read(page):
    """{(name, frozenset of labels without model_name): value} of every sample."""
    found = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            labels = {k: v for k, v in LABEL.findall(series) if k != "model_name"}
            found[series.split("{", 1)[0], frozenset(labels.items())] = float(value)
    return found


def value(samples, name, **labels):
    return samples[name, frozenset(labels.items())]


def by(samples, name, label):
    """{value of the label: value} of a metric that has this one label."""
    return {
        dict(labels)[label]: number for (n, labels), number in samples.items()
        if n == name and {k for k, _ in labels} == {label}
    }
