#!/usr/bin/env bash
# One page of all complete results, which says what is missing: sbatch slurm/report.sh
#SBATCH --job-name=locost-report
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=00:30:00
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
source "$LOCOST_ROOT/slurm/common.sh"

results=$(LOCOST_ROOT=$LOCOST_ROOT $CONTAINER "$PYTHON" pipeline/chain.py results) || exit 2
mapfile -t results <<< "$results"
program=(pipeline/report.py paper "${results[@]}" --output "$RUNS/report" "$@")
[[ -z $CHECK ]] || CHECK=--dry_run  # it needs no result
check "${program[@]}"
$CONTAINER "$PYTHON" "${program[@]}"
status=$?
say "ended with status $status"
exit $status
