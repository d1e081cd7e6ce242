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
: "${EVALUATE_FLAGS:=}" "${MEASURE_FLAGS:=}" "${REPORT_FLAGS:=}"    # report: judge and kernels too
: "${CPU:=0}"                   # 1: no GPUs; the same scripts on CPU nodes, over gloo
: "${GPUS_PER_NODE:=4}"         # processes of a training on each node, one for each GPU
: "${GPU_FLAGS:=--gpus-per-node=$GPUS_PER_NODE}"    # how they are asked for: --gres=gpu:4; none: " "
: "${ONE_GPU_FLAGS:=--gpus-per-node=1}"     # of a metric, and of the measurements of systems
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
# The GPUs of a node share each book in training: all of them, however many there are.
: "${BOOKSUM_BOOK_WHOLE_FINETUNE_ARGUMENTS:=$FINETUNE_ARGUMENTS --train.sequence_parallel_size $GPUS_PER_NODE}"
: "${BOOKSUM_BOOK_WHOLE_EVALUATE_ARGUMENTS:=$BOOKSUM_BOOK_EVALUATE_ARGUMENTS}"

# --- The paper's other tables and figures (docs/slurm.md): " " leaves one out ----------------------
: "${EXTRAPOLATE:=8192}"        # source tokens that LOCOST's model of arXiv reads as well
: "${CONTEXTS:=1024 2048 4096 8192 16384}"  # source tokens of more fine-tunings on BookSum-Book
: "${METRIC_SETS:=arxiv pubmed booksum_chapter}" "${JUDGE_SETS:=pubmed}"
: "${BERT_SCORE_ARGUMENTS:=}"   # "--model models/roberta-large --layer 17"
: "${BLANC_ARGUMENTS:=}"        # "--model models/bert-base-uncased", after make legacy
# With OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL exported:
: "${JUDGE_ARGUMENTS:=}"        # "--price_input 0 --price_output 0"
: "${SYSTEMS_ARGUMENTS:=--dtype bf16 --device $([[ $CPU == 1 ]] && echo cpu || echo cuda)}"
: "${KERNELS_ARGUMENTS:=--lags 2048}"

# --- Baselines -----------------------------------------------------------------------------------
# Of longt5-tglobal longt5-local led bigbird lsg t5 bart pegasus (bart-large etc. too); of each one
# NAME_MODEL, the folder of its weights and tokenizer (docs/baselines.md), - in its name as _.
: "${BASELINES:=}"              # "longt5-tglobal led", with LED_MODEL=models/led-base-16384
# Those of SETS that one runs on: the paper's. Empty: all.
: "${LED_SETS:=arxiv pubmed govreport summscreenfd booksum_chapter}" "${BART_SETS:=govreport summscreenfd}"
: "${BIGBIRD_SETS:=arxiv pubmed}" "${PEGASUS_SETS:=arxiv pubmed}" "${LSG_SETS:=arxiv pubmed booksum_chapter}"
: "${BART_LARGE_SETS:=booksum_book}" "${T5_LARGE_SETS:=booksum_book}" "${PEGASUS_LARGE_SETS:=booksum_book}"
: "${T5_OWN_TOKENIZER:=0}" "${T5_LARGE_OWN_TOKENIZER:=0}"   # 0: it reads the shards made with TOKENIZER
: "${LONGT5_TGLOBAL_OWN_TOKENIZER:=0}" "${LONGT5_LOCAL_OWN_TOKENIZER:=0}"
: "${LSG_PYTHON:=$LOCOST_ROOT/.venv-legacy/bin/python}"     # of make legacy
# Arguments of one system come behind those of the set: LED_FINETUNE_ARGUMENTS, of LED on one set alone
# ARXIV_LED_FINETUNE_ARGUMENTS; LOCOST_... those that only LOCOST has, such as --sequence_parallel_size.
: "${LONGT5_TGLOBAL_EXTRAPOLATE:=8192}"
: "${BOOKSUM_BOOK_LONGT5_TGLOBAL_FINETUNE_ARGUMENTS:=--data.source_length 16384}"
: "${BOOKSUM_BOOK_LONGT5_TGLOBAL_EVALUATE_ARGUMENTS:=--source_length 32768}"
# What their learned positions hold, or, of T5's full attention, what fits:
: "${BIGBIRD_FINETUNE_ARGUMENTS:=--data.source_length 4096}" "${BIGBIRD_EVALUATE_ARGUMENTS:=--source_length 4096}"
: "${BART_FINETUNE_ARGUMENTS:=--data.source_length 1024}" "${BART_EVALUATE_ARGUMENTS:=--source_length 1024}"
: "${PEGASUS_FINETUNE_ARGUMENTS:=--data.source_length 1024}" "${PEGASUS_EVALUATE_ARGUMENTS:=--source_length 1024}"
: "${BART_LARGE_FINETUNE_ARGUMENTS:=--data.source_length 1024}" "${BART_LARGE_EVALUATE_ARGUMENTS:=--source_length 1024}"
: "${PEGASUS_LARGE_FINETUNE_ARGUMENTS:=--data.source_length 1024}" "${PEGASUS_LARGE_EVALUATE_ARGUMENTS:=--source_length 1024}"
: "${T5_LARGE_FINETUNE_ARGUMENTS:=--data.source_length 1024}" "${T5_LARGE_EVALUATE_ARGUMENTS:=--source_length 1024}"
