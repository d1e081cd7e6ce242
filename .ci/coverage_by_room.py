"""Print line coverage by folder, from the JSON report of coverage on standard input."""

import json
import sys
from collections import Counter
from pathlib import Path

lines, covered = Counter(), Counter()
for name, file in json.load(sys.stdin)["files"].items():
    for room in (str(Path(name).parent), "total"):
        lines[room] += file["summary"]["num_statements"]
        covered[room] += file["summary"]["covered_lines"]
print(f"{'room':40}{'lines':>8}{'covered':>9}")
for room in sorted(lines, key=lambda room: (room == "total", room)):
    print(f"{room:40}{lines[room]:8}{covered[room] / max(lines[room], 1):9.1%}")
