#!/usr/bin/env bash
# Text to shards: sbatch slurm/preprocess.sh [pretrain | SET] [arguments of preprocessing]
#
# `pretrain` (the default) makes C4's train and validation shards, a set its three splits. Array
# tasks share the folders, file by file; each ends when a folder is complete. Killed: submit again.
#SBATCH --job-name=locost-preprocess
#SBATCH --array=1-4
#SBATCH --nodes=1
#SBATCH --ntasks=16
#SBATCH --cpus-per-task=1
#SBATCH --time=10:00:00
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
source "$LOCOST_ROOT/slurm/common.sh"

what=${WHAT:-pretrain}

# shards OUTPUT SPLIT PROGRAM...: one dataset folder, by all cores of this node.
shards() {
    local output=$1 split=$2
    shift 2
    [[ ! -e $output/manifest.json ]] || { say "$output is complete"; return; }
    local program=(-m "$@" --split "$split" --tokenizer "$TOKENIZER" --output "$output")
    (check "${program[@]}") || exit $?
    [[ $DRY_RUN == 0 ]] || return
    "$MPIRUN" --bind-to none -n "${SLURM_NTASKS:-1}" \
        $CONTAINER "$PYTHON" "${program[@]}" || { status=$?; say "ended with status $status"; exit $status; }
}

if [[ $what == pretrain ]]; then
    shards "$SHARDS/c4-train" train preprocessing.pretrain --input "$C4_TRAIN" "$@"
    shards "$SHARDS/c4-validation" validation preprocessing.pretrain --input "$C4_VALIDATION" "$@"
else
    case $what in
        arxiv | pubmed | govreport | summscreenfd | booksum_chapter | booksum_book) dataset=${what//_/-} ;;
        *) dataset=jsonl ;;
    esac
    for split in train validation test; do
        input=$(of_set INPUT "$what")
        input=${input//\{set\}/$what}
        shards "$SHARDS/$what-$split" $split preprocessing.finetune --dataset $dataset \
            --input "${input//\{split\}/$split}" $(of_set PREPROCESS_ARGUMENTS "$what") "$@"
    done
fi
[[ $DRY_RUN == 1 ]] || say "ended with status 0"
