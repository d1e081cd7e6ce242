"""Print what training needs beyond torch and numpy, as requirements: NAME==VERSION a line.

The versions are those of the environment that runs this, local suffixes dropped.
"""

from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TRAINING = (
    "deepspeed", "sentencepiece", "msgpack", "jsonargparse[signatures]", "tensorboard",
    "safetensors", "PyYAML", "tqdm",
)  # fmt: skip
PRESENT = {"torch", "numpy"}
"""Of the machine with the GPU; torch's own needs come with it."""


def closure(requirements: tuple[str, ...]) -> dict[str, str]:
    """The version of each installed package that the requirements need, by name."""
    found: dict[str, str] = {}
    pending = [Requirement(one) for one in requirements]
    while pending:
        wanted = pending.pop()
        name = canonicalize_name(wanted.name)
        if name in PRESENT or (name in found and not wanted.extras):
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        found[name] = package.version.partition("+")[0]
        for text in package.requires or []:
            needed = Requirement(text)
            extras = [*wanted.extras, ""]
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                pending.append(needed)
    return found


for name, version in sorted(closure(TRAINING).items()):
    print(f"{name}=={version}")
