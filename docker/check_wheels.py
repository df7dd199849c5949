"""Compare the wheels that pip installed with the hashes in wheels.sha256; the build fails if one differs.

The argument is a report from ``pip install --report``. pip compares each wheel with the hash that the index states;
this comparison does not rely on the index.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def wheel_line(installed: dict[str, Any]) -> str:
    """Format an entry of a report as ``name==version sha256``."""
    digest = installed["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return f"{installed['metadata']['name'].lower()}=={installed['metadata']['version']} {digest}"


def main(report: Path, hashes: Path) -> int:
    """Print the wheels in the report whose hash is unknown; the exit status is 1 if there are any."""
    known = set(hashes.read_text(encoding="utf-8").splitlines())
    unknown = [
        line
        for line in map(wheel_line, json.loads(report.read_text(encoding="utf-8"))["install"])
        if line not in known
    ]
    if unknown:
        sys.stderr.write("".join(f"Not in docker/wheels.sha256: {line}\n" for line in unknown))
        sys.stderr.write("After changing packages or Python, run: python docker/hash_wheels.py\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path("wheels.sha256")))
