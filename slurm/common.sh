# Shared by the job scripts, which source it with LOCOST_ROOT set, and DEFAULT, the usual first word.
#
# A script reads settings and modules, requires its predecessors' markers (`require`), checks its
# inputs in one process (`check`) and the nodes (`check_nodes`), then runs the program until it is
# complete (`work`). The job has the program's exit status, except that a stopped one (85) is
# requeued, and a failed one once if it has made progress.

cd "$LOCOST_ROOT" || exit 2
LOCOST_ROOT=$PWD
source "${LOCOST_SETTINGS:-slurm/settings.sh}" || exit 2

RESUME_LATER=85     # train.py and evaluate.py: stopped and saved, to be resumed
USER_ERROR=2
CONTROLLER_SECONDS=900      # how long Slurm's controller may be away
RESTARTS=${SLURM_RESTART_COUNT:-0}

say() { echo "[$(date '+%F %T')] ${SLURM_JOB_NAME:-dry run}${SLURM_JOB_ID:+ (job $SLURM_JOB_ID)}: $*"; }
fail() { echo "error: $1" >&2; exit "${2:-$USER_ERROR}"; }

for switch in CPU REQUEUE NODE_CHECK; do
    [[ ${!switch} == [01] ]] || fail "$switch is ${!switch}, expected 0 or 1"
done

CHECK=              # dry_run: check all inputs; check_arguments: all that needs no input
WHAT=               # the script's first word, such as a set's name; the others are the program's
ARGUMENTS=()
for argument in "$@"; do
    if [[ $argument == --dry_run || $argument == --check_arguments ]]; then
        CHECK=$argument
    elif [[ -z $WHAT && ${#ARGUMENTS[@]} == 0 && $argument != -* ]]; then
        WHAT=$argument
    else
        ARGUMENTS+=("$argument")
    fi
done
set -- "${ARGUMENTS[@]}"
WHAT=${WHAT:-${DEFAULT:-}}
[[ $WHAT =~ ^([a-z0-9_]*)(:([a-z0-9-]+))?(@([0-9]+))?(\+([0-9]+))?$ ]] ||
    fail "$WHAT is not SET, SET:SYSTEM, SET@TOKENS or SET+TOKENS (a set: lower-case letters, digits and _)"
SET=${BASH_REMATCH[1]} SYSTEM=${BASH_REMATCH[3]} TRAINED=${BASH_REMATCH[5]} READ=${BASH_REMATCH[7]}
[[ $CHECK || -n ${SLURM_JOB_ID:-} ]] ||
    fail "$0 is a job: submit it with sbatch, or pass --dry_run to check its inputs"
if [[ -n $MODULES ]]; then module load $MODULES || fail "MODULES: cannot load $MODULES"; fi
set -uo pipefail    # not before: the scripts of modules and conda read variables that are not set

# of_set NAME: the setting NAME of this job's set (ARXIV_NAME), else the general one.
of_set() {
    local own=${SET^^}_$1
    echo "${!own-${!1}}"
}

# of_system NAME: that of the job's system on its set (ARXIV_LED_NAME), else on any (LED_NAME).
of_system() {
    local system=${SYSTEM:-locost}
    local own=${system^^}_$1
    own=${own//-/_}
    local here=${SET^^}_$own
    echo "${!here-${!own-}}"
}

MODEL=              # the folder of the baseline's weights
if [[ -n $SYSTEM && -z ${KIND:-} ]]; then   # measure.sh reads only its summaries
    MODEL=$(of_system MODEL)
    [[ -f $MODEL/config.json ]] ||
        fail "the setting MODEL of $SYSTEM is '$MODEL', expected the folder of its weights (config.json)"
    python=$(of_system PYTHON)
    PYTHON=${python:-$PYTHON}
fi
# data SPLIT: the folder of the set's shards that the job's model reads.
data() {
    local own=$(of_system OWN_TOKENIZER)
    [[ -z $SYSTEM || $own == 0 ]] && echo "$SHARDS/$SET-$1" || echo "$SHARDS/$SET-$1-$SYSTEM"
}
# folder NAME WHAT: the folder of a model's run or evaluation.
folder() { echo "$RUNS/$1-${2/:/-}"; }

if [[ -z $CONTAINER ]]; then
    python=$(command -v "$PYTHON") || fail "PYTHON: no program $PYTHON; run make, or set PYTHON"
    PYTHON=$python
fi
if [[ $MPIRUN == mpirun && -x $(dirname "$PYTHON")/mpirun ]]; then MPIRUN=$(dirname "$PYTHON")/mpirun; fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONWARNINGS=ignore::FutureWarning
if [[ $CPU == 1 ]]; then export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=; fi

# The job's GPUs, however they were asked for, belong to its one step as a whole: srun would repeat
# the request of `#SBATCH --gpus-per-node` beside sbatch's --gres, or bind each task to one GPU.
GPUS=0
[[ $CPU == 1 ]] || GPUS=${SLURM_GPUS_ON_NODE:-0}
ONE_TASK_GPUS=${SLURM_GPUS_PER_TASK:+--gres=gpu:$GPUS}  # for a step of one task a node
unset SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_NTASKS_PER_GPU \
    SLURM_TRES_PER_TASK SLURM_TRES_BIND SLURM_GPU_BIND
if [[ -n ${SLURM_JOB_ID:-} && -z $CHECK ]]; then
    commit=$(git describe --always --dirty 2>/dev/null)
    say "start $RESTARTS${commit:+, code at commit $commit}"
    [[ ${LOCOST_COMMIT:-$commit} == "$commit" ]] ||
        say "note: the code was at $LOCOST_COMMIT when this job was submitted"
fi

# require MARKER MESSAGE: fail unless the file exists, which completes an earlier stage.
require() { [[ -e $1 || $CHECK == --check_arguments ]] || fail "$2"; }

# check PROGRAM...: the program's own check, before the job's step starts. Ends a dry run.
check() {
    if [[ $RESTARTS == 0 ]]; then
        local said status
        # One process: Slurm's number of tasks does not apply to it.
        said=$(env -u SLURM_NTASKS $CONTAINER "$PYTHON" "$@" "${CHECK:---dry_run}")
        status=$?
        [[ -z $said ]] || tail -n 1 <<< "$said"     # train.py prints its configuration first
        [[ $status == 0 ]] || exit $status
    fi
    [[ -z $CHECK ]] || exit 0
}

# layout: sets TASKS, the processes a node (one for each GPU, else as sbatch was told), and CPUS, the
# cores of each.
TASKS=1 CPUS=1
layout() {
    TASKS=${SLURM_NTASKS_PER_NODE:-$((${SLURM_NTASKS:-1} / ${SLURM_NNODES:-1}))}
    if ((GPUS && GPUS != TASKS)); then
        say "$GPUS processes a node, one for each GPU (not --ntasks-per-node=$TASKS)"
        TASKS=$GPUS
    fi
    local cpus=$((${SLURM_CPUS_ON_NODE:-1} / TASKS))
    CPUS=$((cpus > 0 ? cpus : 1))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$CPUS}
}

# check_nodes FOLDER...: every node answers, has its GPUs, free space in these folders and the right time.
check_nodes() {
    [[ $NODE_CHECK == 1 ]] || return 0
    local said status
    said=$(srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --input=none \
        $ONE_TASK_GPUS timeout 45 $CONTAINER "$PYTHON" pipeline/node_check.py look "$@" 2>&1)
    status=$?
    $CONTAINER "$PYTHON" pipeline/node_check.py judge --gpus "$GPUS" --srun_status $status \
        --nodes "$(slurm scontrol show hostnames | paste -sd,)" <<< "$said" || exit 1
}

# slurm COMMAND...: one of Slurm's commands, repeated while its controller does not answer.
slurm() {
    local said status until=$((SECONDS + CONTROLLER_SECONDS))
    while true; do
        said=$("$@" 2>&1)
        status=$?
        [[ $status != 0 && $SECONDS -lt $until ]] || break
        [[ $said =~ (Unable to contact|timed out|Connection refused|Zero Bytes) ]] || break
        sleep 5
    done
    echo "$said"
    return $status
}

# claim FOLDER: only one job at a time works there; this one fails if another does.
claim() {
    mkdir -p "$1"
    local owner
    owner=$(cat "$1/job" 2>/dev/null)
    if [[ -n $owner && $owner != "$SLURM_JOB_ID" ]] &&
        [[ -n $(squeue --noheader --jobs="$owner" --states=running,suspended 2>/dev/null) ]]; then
        fail "$1: job $owner is at work there; wait for it, or give another RUNS"
    fi
    echo "$SLURM_JOB_ID" > "$1/.job.$SLURM_JOB_ID" && mv "$1/.job.$SLURM_JOB_ID" "$1/job"
    # On a node that Slurm gave up, processes of this job's last start may live for train.hang_timeout.
    ((RESTARTS == 0)) || flock --timeout 900 "$1/.lock" true
}

# step LOGS PROGRAM...: the program in every task, with a log of each; rank 0's is also the job's.
# USR2, which Slurm sends to this shell before the time limit, is forwarded until the program ends,
# because the program ignores it until it can save.
step() {
    local logs=$1 step log status
    shift
    mkdir -p "$logs"
    # A task that ends early ends the others after 60 s: time for all to end with 85.
    srun --nodes="$SLURM_NNODES" --ntasks=$((SLURM_NNODES * TASKS)) --ntasks-per-node="$TASKS" \
        --cpus-per-task="$CPUS" --wait=60 --input=none --output="$logs/rank-%t.log" \
        bash -c 'trap "" USR2; exec "$@"' - $CONTAINER "$PYTHON" -u "$@" \
        2> >(tee "$logs/srun.log" >&2) &
    step=$!
    local forward="(while kill -USR2 $step 2>/dev/null; do sleep 10; done) &"
    trap "$forward"' say "received the signal to stop"' USR2
    trap "$forward"' TERMINATED=1; say "received SIGTERM"' TERM
    tail --pid=$step -q -n +1 -F "$logs/rank-0.log" 2>/dev/null &
    log=$!
    while kill -0 $step 2>/dev/null; do wait $step; done    # a signal interrupts the wait
    trap 'STOPPING=1' USR2
    wait $log
    wait $step
    status=$?
    case $status in
        0 | "$RESUME_LATER") rm -r "$logs" && rmdir --ignore-fail-on-non-empty "$(dirname "$logs")" ;;
        *)
            say "failed; the logs of all tasks are in $logs"
            grep -aH '^error: ' "$logs"/rank-*.log | grep -v '/rank-0.log:' | head -n 20
            grep -ahE '^(srun|slurmstepd): ' "$logs/srun.log" | tail -n 20
            ;;
    esac
    return $status
}

# here COMMAND...: the command on this node; USR2 ends it.
here() {
    "$@" &
    local step=$! status
    trap 'STOPPING=1; say "received the signal to stop"; kill '$step USR2
    trap 'STOPPING=1; TERMINATED=1; say "received SIGTERM"; kill '$step TERM
    while kill -0 $step 2>/dev/null; do wait $step; done
    trap 'STOPPING=1' USR2
    wait $step
    status=$?
    [[ $status == 0 || $STOPPING == 0 ]] || return "$RESUME_LATER"
    return $status
}

# mpi_step PROGRAM...: the program in one process per core of this node.
mpi_step() { here "$MPIRUN" --bind-to none -n "${SLURM_NTASKS:-1}" $CONTAINER "$PYTHON" "$@"; }

# work STATE STEP...: run the step; resume later if it was stopped, or if it failed after progress.
# STATE is a folder for notes between starts. The script's function `progress` prints a number that
# grows as results are saved.
STOPPING=0 TERMINATED=0
work() {
    local state=$1 before status idle=0
    shift
    mkdir -p "$state"
    [[ -z ${LOCOST_SUBMISSION:-} || $(cat "$state/gave_up" 2>/dev/null) != "$LOCOST_SUBMISSION" ]] ||
        fail "the link before this one failed without progress; see its log" 1
    before=$(progress)
    status=$RESUME_LATER    # signalled during the checks
    if [[ $STOPPING == 0 ]]; then
        "$@"
        status=$?
    fi
    (($(progress) > before)) || idle=$(($(cat "$state/idle_starts" 2>/dev/null || echo 0) + 1))
    echo "$idle" > "$state/idle_starts"
    if [[ $TERMINATED == 1 && $status == "$RESUME_LATER" ]]; then   # the user's will: no requeue
        say "stopped by SIGTERM, all results are saved; submit this job again to resume"
        exit "$RESUME_LATER"
    fi
    case $status in
        0) rm -f "$state"/{idle_starts,gave_up} ;;
        "$RESUME_LATER") resume_later "stopped, all results are saved" "$idle" 0 ;;
        *)
            say "ended with status $status"
            if ((idle == 0)) && [[ $status != "$USER_ERROR" ]]; then
                resume_later "it had made progress, so it gets one more try" 0 $status
            fi
            echo "${LOCOST_SUBMISSION:-}" > "$state/gave_up"
            exit $status
            ;;
    esac
}

# resume_later WHY IDLE STATUS: requeue this job; where that is disabled, end with STATUS, so that
# the next link of the chain resumes.
resume_later() {
    local why=$1 idle=$2 status=$3 said job
    ((idle < MAX_IDLE_STARTS)) || fail "$why, but $idle starts in a row made no progress \
(MAX_IDLE_STARTS=$MAX_IDLE_STARTS); give a longer time limit: sbatch --time" 1
    if [[ $REQUEUE != 1 ]]; then
        say "$why; the next link resumes it, or submit this job again"
        exit "$status"
    fi
    # Not if the user has cancelled the job, or Slurm has already restarted it elsewhere.
    job=$(slurm scontrol show job "$SLURM_JOB_ID" -o) ||
        fail "$why, but not requeued: $job; submit this job again" 1
    [[ $job == *" Restarts=$RESTARTS "* && $job != *JobState=CANCELLED* ]] || exit "$RESUME_LATER"
    say "$why; to be requeued"
    if said=$(slurm scontrol requeue "$SLURM_JOB_ID"); then
        sleep 300   # until Slurm ends this shell
    fi
    say "not requeued: $said; the next link resumes it, or submit this job again"
    exit "$status"
}

# train NODES RUN ARGUMENTS...: train.py until it has finished, failed, or been stopped. NODES is
# what chain.sh asks for, which a check outside a job assumes.
train() {
    local nodes=$1 run=$2
    shift 2
    if [[ -e $run/FINISHED ]]; then
        say "$run is finished"
        exit 0
    fi
    local program=(pipeline/train.py --deepspeed_config "$DEEPSPEED_CONFIG" --output "$run" "$@")
    [[ -z $CHECK ]] || check "${program[@]}" --processes $((nodes * GPUS_PER_NODE))
    claim "$run"
    layout
    check "${program[@]}" --processes $((SLURM_NNODES * TASKS))
    check_nodes "$run"
    progress() { sed 's/^step-0*//' "$run/checkpoints/latest" 2>/dev/null || echo 0; }
    work "$run" step "$run/logs/$SLURM_JOB_ID-$RESTARTS" "${program[@]}"
    say "ended with status 0"
}
trap 'STOPPING=1' USR2
