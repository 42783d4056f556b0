"""Every address of docs/openapi.json under requests that its description allows, and others that it does not: schemathesis makes
them from one seed, and finds nothing: no 500, no answer of another shape, code or kind, no bad input that is taken."""

import subprocess

import pytest
from test_http_api import BASIC, ROOT, Server

TOOL = ROOT / ".venv" / "schemathesis" / "bin" / "st"
EXAMPLES = 3  # of each address, beside those at the bounds of each field


@pytest.mark.skipif(not TOOL.exists(), reason="schemathesis is not installed: .ci/setup")
def test_schemathesis_finds_nothing(tmp_path):
    server = Server(tmp_path, False)
    done = subprocess.run([str(TOOL), "--config-file", str(ROOT / "tests/system/schemathesis.toml"), "run", str(ROOT / "docs/openapi.json"),
                           "--url", server.url(), "-H", "Authorization: " + BASIC, "--max-examples", str(EXAMPLES), "--seed", "1",
                           "--generation-database", "none", "--phases", "examples,coverage,fuzzing", "--no-color"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=240)
    failures = done.stdout.partition("FAILURES")[2].partition("WARNINGS")[0]
    assert done.returncode == 0, failures[:6000] or done.stdout[-3000:] + done.stderr[-3000:]
    assert " generated" in done.stdout
    assert server.stop() == 0
