"""Compare the pinned packages with a database of known vulnerabilities, using pip-audit.

pip-audit passes packages that the database has no answer for, and so passes even without a network. This script exits
with status 0 if all packages were compared and have no known vulnerability, 1 if a package has one, and 2 if packages
could not be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_SERVICES = ("pypi", "osv")
_SHOWN = 5


def main(requirements: str) -> int:
    """Audit a file of pinned requirements with the first database that answers, and return the exit status."""
    problem = ""
    for service in _SERVICES:
        command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
        command += ["--disable-pip", "--no-deps", "-r", requirements, "--vulnerability-service", service]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            status, text = summarize(json.loads(done.stdout))
        except ValueError:
            problem = (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
            continue
        if status != 2:
            sys.stdout.write(f"{text}\n")
            return status
        problem = text
    sys.stderr.write(
        f"NOT AUDITED: {problem}\nRun `make audit` where a vulnerability database can be reached.\n"
    )
    return 2


def summarize(report: Mapping[str, Any]) -> tuple[int, str]:
    """Summarize a JSON report of pip-audit as exit status and text."""
    packages = report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    vulnerabilities = [
        f"{package['name']} {package['version']}: {entry['id']}, fixed in {', '.join(entry['fix_versions']) or '-'}"
        for package in packages
        for entry in package.get("vulns", ())
    ]
    if vulnerabilities:
        return 1, "\n".join([f"Known vulnerabilities: {len(vulnerabilities)}", *vulnerabilities])
    if skipped or not packages:
        names = ", ".join(skipped[:_SHOWN]) + (", …" if len(skipped) > _SHOWN else "")
        return 2, f"the database has no answer for {len(skipped)} of {len(packages)} packages ({names})"
    return 0, f"no known vulnerabilities in {len(packages)} packages"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
