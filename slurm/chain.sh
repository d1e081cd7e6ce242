#!/usr/bin/env bash
# All stages as a chain of jobs, from any folder: bash slurm/chain.sh [--dry_run | status | cancel]
#
# Submits the missing jobs; a repeated call resumes where the last one stopped.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LOCOST_ROOT=${LOCOST_ROOT:-$(dirname "$here")}
source "${LOCOST_SETTINGS:-$LOCOST_ROOT/slurm/settings.sh}" || exit 2
if [[ -n $MODULES ]]; then module load $MODULES || exit 2; fi
# This needs only the standard library: any Python will do if $PYTHON is in a container.
python=$(command -v "$PYTHON" || command -v python3) &&
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "error: no Python 3.10 or newer at $PYTHON; run make, or set PYTHON" >&2; exit 2; }
LOCOST_ROOT=$LOCOST_ROOT exec "$python" "$here/../pipeline/chain.py" "$@"
