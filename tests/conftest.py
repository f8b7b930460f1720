"""Fixtures of the end-to-end tests, and the rule that nothing is skipped in silence."""
import signal

import pytest
from support.needs import unmet
from support.node import Node
from support.zoo import Zoo


# Longest time of one test with its fixtures; one that hangs fails instead.
TEST_SECONDS_MAX = 240


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    def too_long(*_):
        raise AssertionError(f"{item.name} ran for more than {TEST_SECONDS_MAX} s")
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TEST_SECONDS_MAX)
    yield
    signal.alarm(0)


def pytest_runtest_setup(item) -> None:
    for mark in item.iter_markers("needs"):
        if unmet(mark.args[0]):
            pytest.skip(f"needs {mark.args[0]}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A skip that no ``needs`` mark explains is a failure."""
    report = (yield).get_result()
    if report.skipped and not any(unmet(mark.args[0]) for mark in item.iter_markers("needs")):
        report.outcome = "failed"
        report.longrepr = "skipped without a need that this machine lacks"


@pytest.fixture(scope="module")
def node():
    """One node for the tests of a file; it and everything in it is gone afterwards."""
    with Node() as running:
        yield running


@pytest.fixture
def runtime(node):
    return node.client


@pytest.fixture
def sandbox(runtime):
    """A fresh sandbox, deleted afterwards."""
    with runtime.sandboxes.create() as made:
        yield made


@pytest.fixture
def zoo(sandbox) -> Zoo:
    """The zoo, running in ``sandbox``."""
    return Zoo.start(sandbox)
