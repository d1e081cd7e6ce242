# Where things are, and what this site is like. Every value gives way to one in the environment:
#
#     source slurm/settings.sh && sbatch slurm/pretrain.sh
#     RUNS=/scratch/me/runs GPU_HOUR_COST=1.5 bash slurm/chain.sh --dry_run
#
# Every script sources this file itself. It must be sourced before `sbatch` for the SBATCH_*
# variables alone, since Slurm reads a script's #SBATCH lines before any shell runs it. They come
# before those lines, and sbatch's own flags before both.

[ -n "${BASH_VERSION:-}" ] || { echo "error: source slurm/settings.sh from bash" >&2; return 2; }

set -a                          # all of these are for the jobs too

# --- Slurm ---------------------------------------------------------------------------------------
# SBATCH_ACCOUNT=my-project
# SBATCH_PARTITION=gpu
# SBATCH_QOS=normal
# SBATCH_CONSTRAINT=a100
# SBATCH_TIMELIMIT=20:00:00           # of every job; for one: sbatch --time
: "${CPU:=0}"                   # 1: no GPUs; the same scripts on CPU nodes, over gloo
: "${REQUEUE:=1}"               # 0: a training that ran out of time ends, and the next link goes on
: "${MAX_REQUEUES:=50}"         # then a training fails rather than go on for ever
: "${NODE_CHECK:=1}"            # 0: no check of the nodes before a training
# Flags for sbatch that chain.sh adds to the jobs of one kind:
: "${PREPROCESS_FLAGS:=}" "${PRETRAIN_FLAGS:=}" "${FINETUNE_FLAGS:=}"
: "${EVALUATE_FLAGS:=}" "${REPORT_FLAGS:=}"
: "${PREPROCESS_JOBS:=4}"       # array tasks that share the work, a node each
: "${PRETRAIN_HOURS:=140}"      # of the whole pre-training, for the number of links (REQUEUE=0)
: "${GPU_HOUR_COST:=0}"         # for chain.sh --dry_run; 0: not known
: "${CURRENCY:=EUR}"

# --- Software ------------------------------------------------------------------------------------
: "${MODULES:=}"                # module load $MODULES, such as "cuda/12.4 gcc/13"
: "${CONTAINER:=}"              # put before every program, such as "apptainer exec --nv locost.sif"
: "${LOCOST_ROOT:=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"    # the repository
: "${PYTHON:=$LOCOST_ROOT/.venv/bin/python}"
: "${MPIRUN:=$(dirname "$PYTHON")/mpirun}"     # with a container: the host's, of the same Open MPI

# --- Paths, relative to the repository or absolute -----------------------------------------------
: "${TOKENIZER:=t5.model}"
: "${C4_TRAIN:=c4/en/c4-train.*.json.gz}"
: "${C4_VALIDATION:=c4/en/c4-validation.*.json.gz}"
: "${SHARDS:=shards}"           # made by preprocess.sh
: "${RUNS:=runs}"               # checkpoints, evaluations, the report, logs
: "${RECIPES:=$LOCOST_ROOT/pipeline/recipes}"     # pretrain_c4.yaml, finetune_SET.yaml
: "${DEEPSPEED_CONFIG:=ds_configs/zero1.json}"

# --- Summarisation sets --------------------------------------------------------------------------
: "${SETS:=arxiv pubmed govreport summscreenfd booksum_chapter booksum_book}"
: "${SETS_DIR:=sets}"
# Each of these may be given for one set, its name in capitals before it. {split} is train,
# validation or test. A set that is not one of the six is read as JSON lines (docs/data.md).
: "${INPUT:=$SETS_DIR/{set\}/{split\}*}"          # ARXIV_INPUT=arxiv-dataset.zip
: "${PREPROCESS_ARGUMENTS:=}"                     # BOOKSUM_BOOK_PREPROCESS_ARGUMENTS="--root books"
: "${FINETUNE_ARGUMENTS:=}"                       # PUBMED_FINETUNE_ARGUMENTS="--train.peak_lr 3e-4"
: "${EVALUATE_ARGUMENTS:=}"
: "${EVALUATE_SPLIT:=test}"                       # GOVREPORT_EVALUATE_SPLIT=validation (SCROLLS)
: "${GOVREPORT_EVALUATE_ARGUMENTS:=--max_new_tokens 1024}"
: "${BOOKSUM_BOOK_EVALUATE_ARGUMENTS:=--max_new_tokens 1024 --source_length 0}"   # whole books

if [[ $CPU == 1 ]]; then        # the scripts' #SBATCH lines ask for GPUs
    SBATCH_GPUS_PER_NODE=0
elif [[ ${SBATCH_GPUS_PER_NODE:-} == 0 ]]; then
    unset SBATCH_GPUS_PER_NODE
fi
set +a
