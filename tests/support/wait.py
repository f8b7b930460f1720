"""Waiting for something to become true, with a limit; no test sleeps for luck."""
import time

from withruntime import RuntimeAPIError

STEP_SECONDS = 0.02


def until(claim, *, seconds: float = 10.0, what: str = ""):
    """Returns the first true answer of ``claim``; fails with the last one when time is up."""
    deadline = time.monotonic() + seconds
    while True:
        answer = claim()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or claim} (last answer {answer!r})"
        time.sleep(STEP_SECONDS)


def said(process) -> str:
    """All it has printed so far; a follower that has nothing new to read gives up after a moment."""
    out = ""
    try:
        for event in process.output(timeout_seconds=0.3):
            if event["type"] in ("stdout", "stderr"):
                out += event["data"]
    except RuntimeAPIError as error:
        if error.code != "request_timeout":
            raise
    return out
