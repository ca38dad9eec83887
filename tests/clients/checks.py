"""Checks of one client: each is a function, whose end is a line of the table."""

import json
import os
import sys
import traceback

URL = os.environ["THERMOCLINE_URL"]
QUESTION = [{"role": "user", "content": "Tell me a story about a dog."}]

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}}
FORCED = {"type": "function", "function": {"name": "weather"}}


def arguments(value):
    """The arguments of a call, which must follow the schema."""
    value = json.loads(value) if isinstance(value, str) else value
    assert set(value) == {"city", "days"} and value["city"] in ("Ulm", "Rome") and 1 <= value["days"] <= 9, value
    return value


def run(client, version, checks):
    """Runs the checks in order and prints a line for each; the exit status says whether all passed."""
    failed = False
    for check in checks:
        name = f"{client:<16} {version:<8} {check.__name__.replace('_', ' '):<46}"
        try:
            check()
            print(f"{name} ok", flush=True)
        except Exception as error:  # the next check is of another thing
            failed = True
            print(f"{name} FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
            traceback.print_exc(file=sys.stderr)
    sys.exit(failed)


def refused(call, *errors):
    """The error of a call that must be refused with one of these."""
    try:
        call()
    except errors as error:
        return error
    raise AssertionError(f"expected {errors}, got an answer")
