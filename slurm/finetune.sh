#!/usr/bin/env bash
# Fine-tune on a set, from the finished pre-training: sbatch slurm/finetune.sh [SET] [arguments of train.py]
#SBATCH --job-name=locost-finetune
#SBATCH --nodes=1
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

set_name=${WHAT:-arxiv}
run=$RUNS/finetune-$set_name
[[ -e $run/checkpoints/latest ]] || # a run that has begun has its own weights
    require "$RUNS/pretrain/FINISHED" "$RUNS/pretrain is not finished; sbatch slurm/pretrain.sh resumes it"
train "$FINETUNE_NODES" "$run" --config "$RECIPES/finetune_$set_name.yaml" \
    --model.init_from "$RUNS/pretrain/last" \
    --data.train "$SHARDS/$set_name-train" --data.validation "$SHARDS/$set_name-validation" \
    $(of_set FINETUNE_ARGUMENTS "$set_name") "$@"
