"""Print the requirements of pyproject.toml, one a line, with those of the extras named as arguments.

The image installs them in a layer of their own, before the source code is copied.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]]
sys.stdout.write("\n".join([*project["dependencies"], *extras]) + "\n")
