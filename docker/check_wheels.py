"""Compare the wheels that pip installed with the hashes of wheels.sha256; the build ends if one differs.

The argument is a report of ``pip install --report``. pip compares each wheel with the hash that the index states; this
comparison does not depend on the index.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def wheel_line(installed: dict[str, Any]) -> str:
    """``name==version sha256`` of an entry of a report."""
    digest = installed["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return f"{installed['metadata']['name'].lower()}=={installed['metadata']['version']} {digest}"


def main(report: Path, hashes: Path) -> int:
    """Exit status: 1 if a wheel of the report is not among the hashes."""
    known = set(hashes.read_text(encoding="utf-8").splitlines())
    unknown = [
        line
        for line in map(wheel_line, json.loads(report.read_text(encoding="utf-8"))["install"])
        if line not in known
    ]
    if unknown:
        sys.stderr.write("".join(f"Not in docker/wheels.sha256: {line}\n" for line in unknown))
        sys.stderr.write("After a change of packages or of Python: python docker/hash_wheels.py\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path("wheels.sha256")))
