"""Attacks on real agents: the fixtures of the system tests, and what must be true after each attack."""

import importlib.util
import pathlib
import sys

SYSTEM = pathlib.Path(__file__).resolve().parent.parent / "system"
SPEC = importlib.util.spec_from_file_location("system_conftest", SYSTEM / "conftest.py")
system_conftest = sys.modules["system_conftest"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(system_conftest)  # which puts itself and docs/demo on the path

from system_conftest import mesh, new_mesh, pytest_runtest_makereport, script  # noqa: E402, F401
