"""The contract tests of the local engine on the device, as pytest counts them."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from bench.gpu.measurement import Measurement
from bench.gpu.schedule import ROOT


def measure(measurement: Measurement) -> None:
    """Add how many tests passed, and the first line of each failure."""
    report = measurement.directory / "contract.xml"
    command = [
        sys.executable, "-m", "pytest", "-q", "-k", "local", "--device", measurement.device.type,
        "-p", "no:cacheprovider", "-o", "filterwarnings=default", f"--junitxml={report}", "tests/contract",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not report.is_file():
        last = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(f"pytest ended with code {done.returncode}: {last[-1] if last else 'it wrote nothing'}")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [(case, fault) for case in cases for fault in (*case.findall("failure"), *case.findall("error"))]
    skipped = sum(case.find("skipped") is not None for case in cases)
    measurement.add("tests/contract", "passed", float(len(cases) - len(failed) - skipped), "tests")
    measurement.add("tests/contract", "failed", float(len(failed)), "tests")
    for case, fault in failed:
        measurement.add(case.get("name", "?"), "failure", (fault.get("message") or "no message").split("\n", 1)[0])
