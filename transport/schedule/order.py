"""The order of transfers for a graph of layers, as pure functions: TIC and TAC of TicTac (Hashemi and others, 2018).

The tensors of one layer count as one transfer here: alone, none of them unlocks anything. Words of the paper, for a
transfer r: P, the computation that r alone unlocks now; M, its own time; M+, the least time of outstanding transfers,
r among them, that together unlock a computation which needs more than r.
"""

from math import inf

from transport.schedule.profile import LinearCost, Profile


def layer_order(profile: Profile, order: str, cost: LinearCost) -> list[int]:
    """Layers that have tensors, most urgent first; equal ones in forward order.

    order: "tic" (all transfers take one unit) or "tac" (cost gives their times, the profile those of the layers).
    """
    times = [0.0] * len(profile.layers)
    for tensor in profile.tensors:
        times[tensor.layer] += 1.0 if order == "tic" else cost.time_ns(tensor.size_bytes)
    if order == "tic":
        times = [min(time, 1.0) for time in times]
    needs = _needs(profile)
    outstanding = 0
    for tensor in profile.tensors:
        outstanding |= 1 << tensor.layer
    if order == "tic":
        _, impending = _properties(profile, needs, times, outstanding)
        return sorted(_members(outstanding), key=lambda layer: (impending[layer], layer))
    layers = []
    while outstanding:
        best = _most_urgent(profile, needs, times, outstanding)
        layers.append(best)
        outstanding &= ~(1 << best)
    return layers


def _needs(profile: Profile) -> list[int]:
    """For each layer, the layers whose tensors it needs directly or through its inputs, as a bit set."""
    needs: list[int] = []
    for place, layer in enumerate(profile.layers):
        inputs = layer.inputs if layer.inputs is not None else ((place - 1,) if place else ())
        layers = 1 << place
        for other in inputs:
            layers |= needs[other]
        needs.append(layers)
    return needs


def _members(bits: int) -> list[int]:
    return [place for place in range(bits.bit_length()) if bits >> place & 1]


def _properties(
    profile: Profile, needs: list[int], times: list[float], outstanding: int
) -> tuple[dict[int, float], dict[int, float]]:
    """P and M+ of each outstanding transfer."""
    unlocked = dict.fromkeys(_members(outstanding), 0.0)
    impending = dict.fromkeys(unlocked, inf)
    waiting = []
    total = 0.0
    known = 0
    for place, layer in enumerate(profile.layers):
        missing = needs[place] & outstanding
        if missing.bit_count() == 1:
            unlocked[missing.bit_length() - 1] += layer.forward_ns
        elif missing:
            if missing & known == known:  # as in a chain: add only what is new
                total += sum(times[member] for member in _members(missing & ~known))
            else:
                total = sum(times[member] for member in _members(missing))
            known = missing
            waiting.append((total, place, missing))
    done = 0
    for time, _, missing in sorted(waiting):
        for member in _members(missing & ~done):
            impending[member] = time
        done |= missing
    return unlocked, impending


def _most_urgent(profile: Profile, needs: list[int], times: list[float], outstanding: int) -> int:
    unlocked, impending = _properties(profile, needs, times, outstanding)
    members = iter(unlocked)
    best = next(members)
    for other in members:
        best_time, other_time = min(unlocked[best], times[other]), min(unlocked[other], times[best])
        if other_time > best_time or (other_time == best_time and impending[other] < impending[best]):
            best = other
    return best
