"""The texts and prompts that the suites use."""

import json
from pathlib import Path

PEER = Path(__file__).parent.parent / "peer"


def passage():
    """The fixed text, whole: more than 2,000 tokens of SmolLM2."""
    return (PEER / "passage.txt").read_text(encoding="utf-8")


def paragraphs():
    return [p.strip() for p in passage().split("\n\n") if p.strip()]


def prompts():
    """(name, messages) of every prompt of prompts.json."""
    texts = paragraphs()
    found = []
    for entry in json.loads((PEER / "prompts.json").read_text(encoding="utf-8"))["prompts"]:
        if "turns" in entry:
            found.append((entry["name"], entry["turns"]))
            continue
        user = entry.get("user")
        if user is None:
            user = "\n\n".join([texts[i] for i in entry["passages"]] + [entry["ask"]])
        system = [{"role": "system", "content": entry["system"]}] if "system" in entry else []
        found.append((entry["name"], system + [{"role": "user", "content": user}]))
    return found


def max_tokens():
    return json.loads((PEER / "prompts.json").read_text(encoding="utf-8"))["max_tokens"]
