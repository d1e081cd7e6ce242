#!/usr/bin/env bash
# Fine-tune on a set, from the finished pre-training: sbatch slurm/finetune.sh [SET] [arguments of train.py]
#
# SET:SYSTEM is a baseline, from its SYSTEM_MODEL; SET@TOKENS truncates sources to so many tokens.
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
DEFAULT=arxiv
source "$LOCOST_ROOT/slurm/common.sh"

[[ -z $READ ]] || fail "a fine-tuning takes SET, SET:SYSTEM or SET@TOKENS, not $WHAT"
run=$(folder finetune "$WHAT")
initial=(--model.init_from "$RUNS/pretrain/last")
if [[ -n $SYSTEM ]]; then
    initial=(--model.init_from "$MODEL" --model.baseline "${SYSTEM%-large}")
elif [[ ! -e $run/checkpoints/latest ]]; then   # a run that has begun has its own weights
    require "$RUNS/pretrain/FINISHED" "$RUNS/pretrain is not finished; sbatch slurm/pretrain.sh resumes it"
fi
train "$FINETUNE_NODES" "$run" --config "$RECIPES/finetune_$SET.yaml" "${initial[@]}" \
    --data.train "$(data train)" --data.validation "$(data validation)" \
    $(of_set FINETUNE_ARGUMENTS) $(of_system FINETUNE_ARGUMENTS) \
    ${TRAINED:+--data.source_length "$TRAINED"} "$@"
