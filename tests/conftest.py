"""Each test's CPU time, its agents' and programs' with it, goes into the report from which tests/run.py writes test-times.txt."""

import os

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    before = os.times()
    item.user_properties.append(("cpu", lambda: sum(os.times()[:4]) - sum(before[:4])))
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown":  # the last report of the three is the one whose properties are written
        item.user_properties[:] = [(name, "%.2f" % value() if callable(value) else value) for name, value in item.user_properties]
    yield
