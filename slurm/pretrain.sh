#!/usr/bin/env bash
# Pre-train on C4's shards: sbatch slurm/pretrain.sh [arguments of train.py]
#
# Five minutes before the time limit, and when preempted, it saves and requeues itself.
#SBATCH --job-name=locost-pretrain
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=20:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
source "$LOCOST_ROOT/slurm/common.sh"

[[ -z $WHAT ]] || fail "pretrain.sh takes only arguments of train.py (--NAME VALUE), not $WHAT"
train "$PRETRAIN_NODES" "$RUNS/pretrain" --config "$RECIPES/pretrain_c4.yaml" \
    --data.train "$SHARDS/c4-train" --data.validation "$SHARDS/c4-validation" \
    $PRETRAIN_ARGUMENTS "$@"
