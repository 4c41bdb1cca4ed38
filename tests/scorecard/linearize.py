"""Whether what clients saw of one name can have happened in one order, one call at a time, each between its beginning and its end.

A history is a list of Calls on one name. The state is the generation that the name stands for, or None. Names do not touch each other, so each is
looked at by itself; what is undecided at any moment is only the order of the calls then under way, and every possible one is kept.
"""

import dataclasses

ANY = object()


@dataclasses.dataclass(frozen=True)
class Call:
    begin: float
    end: float
    what: str       # put, put new, delete, read
    found: object   # what the answer says: the generation of put, read and delete; None: no such name; "exists": put new was refused
    who: str = ""


def after(call, state):
    """The state after the call in that state, or ANY where its answer is impossible then."""
    if call.what == "read":
        return state if call.found == state else ANY
    if call.what == "put":
        return call.found
    if call.what == "put new":
        if call.found == "exists":
            return state if state is not None else ANY
        return call.found if state is None else ANY
    if call.what == "delete":
        if call.found is None:
            return state if state is None else ANY
        return None if state == call.found else ANY
    raise ValueError(call.what)


def closed(configurations, under_way, calls):
    """All that may hold when any of the calls under way have happened; reads as soon as they can, which rules nothing out."""
    todo, seen = list(configurations), set(configurations)
    while todo:
        done, state = todo.pop()
        for i in under_way:
            if i in done:
                continue
            then = after(calls[i], state)
            if then is ANY:
                continue
            next_one = (done | {i}, then)
            if next_one in seen:
                continue
            seen.add(next_one)
            todo.append(next_one)
    return seen


def anomaly(calls, start=None):
    """None, or the first call whose answer no order explains."""
    events = sorted([(call.begin, 0, i) for i, call in enumerate(calls)] + [(call.end, 1, i) for i, call in enumerate(calls)])
    configurations, under_way = {(frozenset(), start)}, set()
    for _, ends, i in events:
        if not ends:
            under_way.add(i)
            continue
        configurations = {(done - {i}, state) for done, state in closed(configurations, under_way, calls) if i in done}
        under_way.discard(i)
        if not configurations:
            return calls[i]
    return None
