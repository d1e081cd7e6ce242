#!/usr/bin/env bash
# The whole run as a chain of jobs, from any folder: bash slurm/chain.sh [--dry_run | status]
#
# Submits what is missing; run again it goes on where it stopped.
set -e

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LOCOST_ROOT=${LOCOST_ROOT:-$(dirname "$here")}
source "$here/settings.sh"
if [[ -n $MODULES ]]; then module load $MODULES; fi
# Nothing is trained here: any Python will do where the usual one is in a container.
python=$(command -v "$PYTHON" || command -v python3) &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "error: no Python 3.10 or newer at $PYTHON; run make, or export PYTHON" >&2; exit 2; }
exec "$python" "$here/../pipeline/chain.py" "$@"
