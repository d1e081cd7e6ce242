# What the job scripts share; sourced by them, with LOCOST_ROOT set.
#
# A script's life: settings, modules; the inputs are checked on this machine alone (`check`); the
# nodes are checked (`check_nodes`); the program runs in every task (`step`). Its status is the
# job's, except that a training that was stopped (85) is put back into the queue.

set -uo pipefail
cd "$LOCOST_ROOT" || exit 2
LOCOST_ROOT=$PWD
source slurm/settings.sh

CONTINUE_LATER=85   # train.py: stopped and saved, to be gone on with
USER_ERROR=2

say() { echo "[$(date '+%F %T')] ${SLURM_JOB_NAME:-dry run}${SLURM_JOB_ID:+ (job $SLURM_JOB_ID)}: $*"; }
fail() { echo "error: $1" >&2; exit "${2:-$USER_ERROR}"; }

for switch in CPU REQUEUE NODE_CHECK; do
    [[ ${!switch} == [01] ]] || fail "$switch is ${!switch}, expected 0 or 1"
done

DRY_RUN=0
WHAT=               # the script's first word, such as a set's name; the rest is for the program
ARGUMENTS=()
for argument in "$@"; do
    if [[ $argument == --dry_run ]]; then
        DRY_RUN=1
    elif [[ -z $WHAT && ${#ARGUMENTS[@]} == 0 && $argument != -* ]]; then
        WHAT=$argument
    else
        ARGUMENTS+=("$argument")
    fi
done
set -- "${ARGUMENTS[@]}"
[[ $WHAT =~ ^[a-z0-9_]*$ ]] || fail "$WHAT is not a set's name (small letters, digits and _)"
[[ $DRY_RUN == 1 || -n ${SLURM_JOB_ID:-} ]] ||
    fail "$0 is a job: submit it with sbatch, or pass --dry_run to check its inputs"
if [[ -n $MODULES ]]; then module load $MODULES || fail "MODULES: cannot load $MODULES"; fi
[[ -x $PYTHON || -n $CONTAINER ]] || fail "PYTHON: no program $PYTHON; run make, or export PYTHON"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONWARNINGS=ignore::FutureWarning
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}     # srun does not take it over from sbatch
if [[ $CPU == 1 ]]; then export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=; fi

# of_set NAME SET: the setting NAME of that set (ARXIV_NAME), else of all.
of_set() {
    local own=${2^^}_$1
    echo "${!own-${!1}}"
}

# check PROGRAM...: the program's own --dry_run, before nodes are kept busy. Ends a dry run.
check() {
    if [[ ${SLURM_RESTART_COUNT:-0} == 0 ]]; then
        # One process: what Slurm says of the job's tasks is not meant for it.
        local said status
        said=$(env -u SLURM_NTASKS $CONTAINER "$PYTHON" "$@" --dry_run)
        status=$?
        [[ -z $said ]] || tail -n 1 <<< "$said"     # train.py's whole configuration comes before
        [[ $status == 0 ]] || exit $status
    fi
    if [[ $DRY_RUN == 1 ]]; then exit 0; fi
}

# check_nodes FOLDER...: every node answers, has its GPUs, room in these folders and the right time.
check_nodes() {
    [[ $NODE_CHECK == 1 ]] || return 0
    local gpus=$((CPU == 1 ? 0 : ${SLURM_GPUS_ON_NODE:-0}))
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --input=none \
        timeout 45 $CONTAINER "$PYTHON" pipeline/node_check.py look "$@" |
        $CONTAINER "$PYTHON" pipeline/node_check.py judge --nodes "$(scontrol show hostnames | paste -sd,)" \
            --gpus "$gpus" || exit 1
}

# claim RUN: one job at a time trains there; where another does, this one ends.
claim() {
    mkdir -p "$1"
    local owner
    owner=$(cat "$1/job" 2>/dev/null)
    if [[ -n $owner && $owner != "$SLURM_JOB_ID" ]] &&
        [[ -n $(squeue --noheader --jobs="$owner" --states=running,suspended 2>/dev/null) ]]; then
        fail "$1: job $owner is training there; wait for it, or give another RUNS"
    fi
    echo "$SLURM_JOB_ID" > "$1/.job.$SLURM_JOB_ID" && mv "$1/.job.$SLURM_JOB_ID" "$1/job"
    # On a node that Slurm gave up, this job's last start may still be alive, up to train.hang_timeout.
    ((${SLURM_RESTART_COUNT:-0} == 0)) || flock --timeout 900 "$1/.lock" true
}

# step LOGS PROGRAM...: the program in every task, a log of each; what rank 0 says is the job's too.
# USR2, which Slurm sends this shell before the time is up, is passed on until the program has ended:
# it ignores the signal until it can save.
STOPPING=0
step() {
    local logs=$1 step log status
    shift
    mkdir -p "$logs"
    # A task that ends early takes the others with it, but not at once: all end with 85 together.
    srun --wait=60 --input=none --output="$logs/rank-%t.log" \
        env --ignore-signal=USR2 $CONTAINER "$PYTHON" -u "$@" &
    step=$!
    trap '(while kill -USR2 '$step' 2>/dev/null; do sleep 10; done) & say "told to stop"' USR2
    tail --pid=$step -q -n +1 -F "$logs/rank-0.log" 2>/dev/null &
    log=$!
    while kill -0 $step 2>/dev/null; do wait $step; done    # a signal interrupts the wait
    trap 'STOPPING=1' USR2
    wait $log
    wait $step
    status=$?
    case $status in
        0 | "$CONTINUE_LATER") rm -r "$logs" && rmdir --ignore-fail-on-non-empty "$(dirname "$logs")" ;;
        *)
            say "failed; what each task wrote is in $logs"
            grep -aH '^error: ' "$logs"/rank-*.log | grep -v '/rank-0.log:' | head -n 20
            ;;
    esac
    return $status
}

# train RUN ARGUMENTS...: train.py until it has finished, failed, or is to be gone on with later.
train() {
    local run=$1
    shift
    local program=(pipeline/train.py --deepspeed_config "$DEEPSPEED_CONFIG" --output "$run" "$@")
    if [[ -e $run/FINISHED ]]; then
        say "$run is finished"
        exit 0
    fi
    trap 'STOPPING=1' USR2
    [[ $DRY_RUN == 1 ]] || claim "$run"
    check "${program[@]}"
    check_nodes "$run"
    [[ $STOPPING == 0 ]] || continue_later "$run"
    step "$run/logs/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" "${program[@]}"
    local status=$?
    [[ $status != "$CONTINUE_LATER" ]] || continue_later "$run"
    say "ended with status $status"
    exit $status
}

# Put this job back into the queue; where that is not to be, end well, so that the next link goes on.
continue_later() {
    local restarts=${SLURM_RESTART_COUNT:-0}
    if [[ $REQUEUE != 1 ]]; then
        say "$1 is saved; the next link goes on with it, or this job submitted again"
        exit 0
    fi
    # Not where the user has cancelled the job, nor where Slurm has started it again elsewhere.
    local job
    job=$(scontrol show job "$SLURM_JOB_ID" -o)
    [[ $job == *" Restarts=$restarts "* && $job != *JobState=CANCELLED* ]] || exit "$CONTINUE_LATER"
    ((restarts < MAX_REQUEUES)) ||
        fail "$1 is saved, but this job has started $((restarts + 1)) times (MAX_REQUEUES=$MAX_REQUEUES)" 1
    if scontrol requeue "$SLURM_JOB_ID"; then
        say "$1 is saved; back into the queue"
        sleep 300   # Slurm ends this shell
    fi
    say "$1 is saved, but this site does not requeue; the next link goes on with it, or this job submitted again"
    exit 0
}
