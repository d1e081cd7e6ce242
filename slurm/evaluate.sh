#!/usr/bin/env bash
# Summarise and score a set's test split: sbatch slurm/evaluate.sh [SET] [arguments of evaluate.py]
#
# What is summarised is kept: submitted again it goes on.
#SBATCH --job-name=locost-evaluate
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=10:00:00
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
source "$LOCOST_ROOT/slurm/common.sh"

set_name=${WHAT:-arxiv}
[[ -e $RUNS/finetune-$set_name/FINISHED ]] ||
    fail "$RUNS/finetune-$set_name is not finished; sbatch slurm/finetune.sh $set_name goes on with it"
output=$RUNS/evaluation-$set_name
program=(pipeline/evaluate.py --checkpoint "$RUNS/finetune-$set_name/best" --output "$output"
    --data "$SHARDS/$set_name-$(of_set EVALUATE_SPLIT "$set_name")"
    $(of_set EVALUATE_ARGUMENTS "$set_name") "$@")
check "${program[@]}"
check_nodes "$RUNS"
step "$output/logs/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" "${program[@]}"
status=$?
say "ended with status $status"
exit $status
