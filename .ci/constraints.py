"""Print a constraints file: the version of each package of the environment that runs this.

Local version suffixes (+cpu) are dropped. A package that needs a newer Python than the project does
is pinned for those Pythons only.
"""

import re
from importlib.metadata import distributions

OLDEST = 10  # of Python 3; requires-python in pyproject.toml
LEFT_OUT = {"locost", "pip"}

print("# Written by `make constraints`: the versions that the Makefile installs.")
pins = {}
for package in distributions():
    name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
    minimum = re.search(r">=?\s*3\.(\d+)", package.metadata.get("Requires-Python") or "")
    pin = f"{name}=={package.version.partition('+')[0]}"
    if minimum and int(minimum[1]) > OLDEST:
        pin += f' ; python_version >= "3.{minimum[1]}"'
    if name not in LEFT_OUT:
        pins[name] = pin
print("\n".join(pins[name] for name in sorted(pins)))
