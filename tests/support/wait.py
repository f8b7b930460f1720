"""Waiting for something to become true, with a limit; no test sleeps for luck."""
import time

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
