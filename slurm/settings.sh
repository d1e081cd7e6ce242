# Paths, software and Slurm options of this site: a file that the job scripts and chain.sh read.
#
# Do not source it. Edit it once, or copy it and export LOCOST_SETTINGS=/path/of/the/copy. Jobs read
# it when they start, so that a change reaches those that are queued. The environment overrides it:
#
#     RUNS=/scratch/me/runs bash slurm/chain.sh --dry_run

# --- Slurm ---------------------------------------------------------------------------------------
# Options of sbatch: for every job of chain.sh, and for one kind. docs/slurm_sites.md has examples.
: "${JOB_FLAGS:=}"              # "--account=my-project --partition=gpu --mem=200G"
: "${PREPROCESS_FLAGS:=}" "${PRETRAIN_FLAGS:=}" "${FINETUNE_FLAGS:=}"
: "${EVALUATE_FLAGS:=}" "${REPORT_FLAGS:=}"
: "${CPU:=0}"                   # 1: no GPUs; the same scripts on CPU nodes, over gloo
: "${GPUS_PER_NODE:=4}"         # processes of a training on each node, one for each GPU
: "${GPU_FLAGS:=--gpus-per-node=$GPUS_PER_NODE}"    # how they are asked for: --gres=gpu:4; none: " "
: "${PRETRAIN_NODES:=4}" "${FINETUNE_NODES:=1}" "${EVALUATE_NODES:=1}"
: "${PREPROCESS_JOBS:=4}"       # jobs that share the work, each on its own node
: "${JOB_PREFIX:=locost}"       # prefix of the names of chain.sh's jobs
: "${NODE_CHECK:=1}"            # 0: no check of the nodes before a training
: "${REQUEUE:=1}"               # 0: a job that runs out of time ends, and the next link resumes it
: "${LINKS:=5}"                 # with REQUEUE=0: jobs one after another for each stage of the chain
: "${MAX_IDLE_STARTS:=5}"       # starts in a row that may end without any progress

# --- Software ------------------------------------------------------------------------------------
: "${MODULES:=}"                # module load $MODULES, such as "cuda/12.4 gcc/13"
: "${CONTAINER:=}"              # prefix of every program, such as "apptainer exec --nv locost.sif"
: "${PYTHON:=$LOCOST_ROOT/.venv/bin/python}"
: "${MPIRUN:=mpirun}"           # beside PYTHON, else on PATH; with a container: the host's

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
# Each of these can be set for one set, with its name in capitals as a prefix. {split} is train,
# validation or test. Any set but these six is read as JSON lines (docs/data.md), except for
# booksum_book_whole: booksum_book, each book trained on as a whole (docs/books.md).
: "${INPUT:=$SETS_DIR/{set\}/{split\}*}"          # ARXIV_INPUT=arxiv-dataset.zip
: "${PREPROCESS_ARGUMENTS:=}"                     # BOOKSUM_BOOK_PREPROCESS_ARGUMENTS="--root books"
: "${PRETRAIN_ARGUMENTS:=}"
: "${FINETUNE_ARGUMENTS:=}"                       # PUBMED_FINETUNE_ARGUMENTS="--train.peak_lr 3e-4"
: "${EVALUATE_ARGUMENTS:=}"                       # "--source_use_by_position"
: "${EVALUATE_SPLIT:=test}"                       # GOVREPORT_EVALUATE_SPLIT=validation (SCROLLS)
: "${GOVREPORT_EVALUATE_ARGUMENTS:=--max_new_tokens 1024}"
: "${BOOKSUM_BOOK_EVALUATE_ARGUMENTS:=--max_new_tokens 1024 --source_length 0}"   # whole books
: "${BOOKSUM_BOOK_WHOLE_INPUT:=${BOOKSUM_BOOK_INPUT:-$SETS_DIR/booksum_book/{split\}*}}"
: "${BOOKSUM_BOOK_WHOLE_PREPROCESS_ARGUMENTS:=${BOOKSUM_BOOK_PREPROCESS_ARGUMENTS:-$PREPROCESS_ARGUMENTS}}"
# The GPUs of a node share each book: all of them, however many there are.
: "${BOOKSUM_BOOK_WHOLE_FINETUNE_ARGUMENTS:=$FINETUNE_ARGUMENTS --train.sequence_parallel_size $GPUS_PER_NODE}"
: "${BOOKSUM_BOOK_WHOLE_EVALUATE_ARGUMENTS:=$BOOKSUM_BOOK_EVALUATE_ARGUMENTS}"
