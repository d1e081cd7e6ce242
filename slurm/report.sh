#!/usr/bin/env bash
# One page of all that is complete: sbatch slurm/report.sh
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

pretrain=() finetune=() evaluation=()
[[ ! -e $RUNS/pretrain/FINISHED ]] || pretrain=(--pretrain "$RUNS/pretrain")
for name in $SETS; do
    [[ ! -e $RUNS/finetune-$name/FINISHED ]] || finetune+=("$name=$RUNS/finetune-$name")
    [[ ! -e $RUNS/evaluation-$name/results.json ]] || evaluation+=("$name=$RUNS/evaluation-$name")
done
program=(pipeline/report.py paper "${pretrain[@]}" --output "$RUNS/report"
    ${finetune:+--finetune "${finetune[@]}"} ${evaluation:+--evaluation "${evaluation[@]}"} "$@")
check "${program[@]}"
$CONTAINER "$PYTHON" "${program[@]}"
status=$?
say "ended with status $status"
exit $status
