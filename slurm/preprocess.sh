#!/usr/bin/env bash
# Text to shards: sbatch slurm/preprocess.sh [pretrain | SET] [arguments of preprocessing]
#
# `pretrain` (the default) makes C4's train and validation shards, a set its three splits;
# SET:SYSTEM makes those once more with the tokenizer in the baseline's SYSTEM_MODEL. Several
# jobs, or the tasks of an array (sbatch --array=1-4), share the work file by file; each ends when
# all is complete. It resumes when requeued, or submitted again.
#SBATCH --job-name=locost-preprocess
#SBATCH --nodes=1
#SBATCH --ntasks=16
#SBATCH --cpus-per-task=1
#SBATCH --time=10:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
DEFAULT=pretrain
source "$LOCOST_ROOT/slurm/common.sh"

[[ -z $TRAINED$READ ]] || fail "preprocessing takes pretrain, SET or SET:SYSTEM, not $WHAT"
[[ -n $(command -v "$MPIRUN") ]] || fail "MPIRUN: no program $MPIRUN; run make, or set MPIRUN"

# shards OUTPUT PROGRAM...: check, or make, one dataset folder with all cores of this node.
shards() {
    local output=$1
    shift
    [[ ! -e $output/manifest.json ]] || { say "$output is complete"; return; }
    local program=(-m "$@" --output "$output")
    (check "${program[@]}") || exit $?
    [[ -n $CHECK ]] || mpi_step "${program[@]}"
}

every_split() {
    local split input
    if [[ $SET == pretrain ]]; then
        for split in train validation; do
            input=C4_${split^^}
            shards "$SHARDS/c4-$split" preprocessing.pretrain --split $split \
                --tokenizer "$TOKENIZER" --input "${!input}" "$@" || return
        done
        return
    fi
    local dataset=jsonl
    case $SET in
        arxiv | pubmed | govreport | summscreenfd | booksum_chapter | booksum_book) dataset=${SET//_/-} ;;
        booksum_book_whole) dataset=booksum-book ;;
    esac
    input=$(of_set INPUT)
    input=${input//\{set\}/$SET}
    for split in train validation test; do
        if [[ -n $SYSTEM ]]; then
            shards "$(data $split)" preprocessing.retokenise --data "$SHARDS/$SET-$split" \
                --tokenizer "$MODEL" "$@" || return
        else
            shards "$(data $split)" preprocessing.finetune --dataset $dataset --split $split \
                --tokenizer "$TOKENIZER" --input "${input//\{split\}/$split}" \
                $(of_set PREPROCESS_ARGUMENTS) "$@" || return
        fi
    done
}

if [[ -n $CHECK ]]; then
    [[ -n $SYSTEM ]] || CHECK=--dry_run     # all of its inputs exist before the first job
    every_split "$@"
    exit
fi
name=${WHAT/:/-}
name=${name/#pretrain/c4}
progress() { # finished items; a finished folder has none, but its manifest
    find "$SHARDS/${name%%-*}"-*/ \( -path '*/.items/*.json' -o -name manifest.json \) 2>/dev/null |
        awk '{ n += /manifest.json$/ ? 1000000 : 1 } END { print n + 0 }'
}
work "$RUNS/logs/preprocess-$name-$SLURM_JOB_ID" every_split "$@"
rmdir "$RUNS/logs/preprocess-$name-$SLURM_JOB_ID"
say "ended with status 0"
