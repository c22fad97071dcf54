"""Compares the answers in the folder's answers.toml with what the results.json that they are about says."""

import json
import tomllib
from pathlib import Path
from typing import Any

CLOSE = 0.01
"""How far a number may be off, of itself: rounded to two places it is right."""

HINTS = {
    "verdict": '"verdict" of the whole file: INVALID as soon as one method\'s certificate is',
    "invalid": '"methods" is a list; each has a "certificate" with "valid", and its name in "method"',
    "broken": (
        'in "certificate" compare "measures" with "bounds": a bound that ends in _least is broken from below, any '
        "other from above; with too few backlogged gaps nothing else about gaps and rates is judged"
    ),
    "rate_bps": '"valid_rate_bps" of the certificate; null where other programs were what was in the way: then 0',
    "speedup": '"communication_speedup" of the switch\'s "comparison"',
    "bound": '"communication_speedup_bound" there: from bytes and framing alone, whatever was measured',
    "speedup_at_equal_compute": (
        '"iteration_speedup_at_equal_compute": a part of "iteration_speedup" is that computing took longer with one '
        "method than with the other, which is no merit of either"
    ),
}


def broken(certificate: dict[str, Any]) -> list[str]:
    """The bounds that measures broke."""
    measures, names = certificate["measures"], []
    too_few = measures["backlogged_gaps"] < certificate["bounds"]["backlogged_gaps_least"]
    for name, bound in certificate["bounds"].items():
        measure = measures.get(name.removesuffix("_least").removesuffix("_most"))
        if measure is None or (too_few and name.startswith(("gap_", "backlogged_rate"))):
            continue
        if measure < bound if name.endswith("_least") else measure > bound:
            names.append(name)
    return sorted(names)


def answers_of(results: dict[str, Any]) -> dict[str, Any]:
    """The right answers. Raises ValueError for a file that the questions don't fit."""
    methods = results["methods"]
    switches = [method for method in methods if method["method"].startswith("switch") and method["comparison"]]
    invalid = [method for method in methods if method["certificate"] and not method["certificate"]["valid"]]
    if results["verdict"] != "INVALID" or not switches:
        raise ValueError(
            "its certificate must be INVALID, and there must be the switch and a method to compare it with"
        )
    comparison, first = switches[0]["comparison"], invalid[0]["certificate"]
    return {
        "verdict": "INVALID",
        "invalid": sorted(method["method"] for method in invalid),
        "broken": broken(first),
        "rate_bps": first["valid_rate_bps"] or 0,
        "speedup": comparison["communication_speedup"],
        "bound": comparison["communication_speedup_bound"],
        "speedup_at_equal_compute": comparison["iteration_speedup_at_equal_compute"],
    }


def same(answer: Any, right: Any) -> bool:
    if isinstance(right, list):
        return isinstance(answer, list) and sorted(map(str, answer)) == right
    if isinstance(right, str) or isinstance(answer, bool):
        return answer is right or answer == right
    return isinstance(answer, int | float) and abs(answer - right) <= CLOSE * abs(right)


def faults(folder: Path) -> list[str]:
    """The faults of the folder's answers.toml."""
    try:
        learner = tomllib.loads((folder / "answers.toml").read_text(encoding="utf-8"))
        file = (
            next(path for path in (folder, folder.parent) if (path / learner["results"]).is_file()) / learner["results"]
        )
        answers = answers_of(json.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        return [f"answers.toml: {error}"]
    except StopIteration:
        return [f"answers.toml: results: there is no file {learner['results']}"]
    except (KeyError, ValueError) as error:
        return [f"answers.toml: results: it doesn't fit the questions: {error}"]
    for name, right in answers.items():
        if not same(learner.get(name), right):
            return [f"{name} = {learner.get(name)!r} is not right", f"look at {HINTS[name]}"]
    return []
