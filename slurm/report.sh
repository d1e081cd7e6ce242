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

runs=() missing=()
add() { # add OPTION FOLDER MARKER STAGE [SET]
    if [[ -e $2/$3 ]]; then runs+=("--$1" "${5:+$5=}$2"); else missing+=("$4"); fi
}
add pretrain "$RUNS/pretrain" FINISHED pretrain
for name in $SETS; do
    add finetune "$RUNS/finetune-$name" FINISHED "finetune-$name" "$name"
    add evaluation "$RUNS/evaluation-$name" results.json "evaluate-$name" "$name"
done
program=(pipeline/report.py paper "${runs[@]}" ${missing:+--missing "${missing[@]}"}
    --output "$RUNS/report" "$@")
[[ -z $CHECK ]] || CHECK=--dry_run  # it needs no result
check "${program[@]}"
$CONTAINER "$PYTHON" "${program[@]}"
status=$?
say "ended with status $status"
exit $status
