"""What pyproject.toml asks for, one requirement a line, for an image layer without the product's own code."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
sys.stdout.write("\n".join([*project["dependencies"], *project["optional-dependencies"][sys.argv[1]]]) + "\n")
