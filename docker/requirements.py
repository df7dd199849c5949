"""What pyproject.toml asks for, extras by name, one requirement a line: for an image layer without our own code."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
sys.stdout.write("\n".join([*project["dependencies"], *extras]) + "\n")
