#!/usr/bin/env bash
# Summarise and score a set's test split: sbatch slurm/evaluate.sh [SET] [arguments of evaluate.py]
#
# SET:SYSTEM is a baseline's, SET@TOKENS that of the model trained on so many tokens; +TOKENS behind
# it reads so many (arxiv+8192).
# Finished summaries are kept: it resumes when requeued, or submitted again.
#SBATCH --job-name=locost-evaluate
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=10:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
DEFAULT=arxiv
source "$LOCOST_ROOT/slurm/common.sh"

run=$(folder finetune "${WHAT%+*}")
output=$(folder evaluation "$WHAT")
require "$run/FINISHED" "$run is not finished; sbatch slurm/finetune.sh ${WHAT%+*} resumes it"
program=(pipeline/evaluate.py --checkpoint "$run/best" --output "$output"
    --data "$(data "$(of_set EVALUATE_SPLIT)")"
    $(of_set EVALUATE_ARGUMENTS) $(of_system EVALUATE_ARGUMENTS) \
    ${READ:+--source_length "$READ"} "$@")
check "${program[@]}"
layout
check_nodes "$RUNS"
progress() { cat "$output"/{predictions,losses}-*.jsonl 2>/dev/null | wc -l; }
work "$output" step "$output/logs/$SLURM_JOB_ID-$RESTARTS" "${program[@]}"
say "ended with status 0"
