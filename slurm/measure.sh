#!/usr/bin/env bash
# What is measured on models that are there: sbatch slurm/measure.sh WHAT [SET] [arguments]
#
# bert_score, blanc or judge of the evaluation of SET (or SET:SYSTEM); systems, which needs no model:
# throughput and memory; kernels of the pre-trained model. The arguments of WHAT are WHAT_ARGUMENTS in
# the settings, then those given. It resumes when requeued, or submitted again.
#SBATCH --job-name=locost-measure
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=10:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

LOCOST_ROOT=${LOCOST_ROOT:-${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}}
[[ -f $LOCOST_ROOT/slurm/common.sh ]] ||
    { echo "error: no repository in $LOCOST_ROOT; submit from it, or export LOCOST_ROOT" >&2; exit 2; }
KIND=
if [[ ${1:--} != -* ]]; then KIND=$1; shift; fi
source "$LOCOST_ROOT/slurm/common.sh"

name=$KIND
output=$RUNS/$KIND
marker=$output/FINISHED
case $KIND in
    bert_score | blanc | judge)
        [[ -n $SET ]] || fail "give the set, or SET:SYSTEM: measure.sh $KIND arxiv"
        name=$KIND-${WHAT/:/-}
        output=$(folder evaluation "$WHAT")
        marker=$output/FINISHED-$KIND
        require "$output/results.json" "$output is not finished; sbatch slurm/evaluate.sh $WHAT resumes it"
        program=(pipeline/metrics.py "$KIND" --evaluation "$output")
        [[ $KIND != judge ]] || program=(pipeline/judge.py --evaluation "$output")
        ;;
    systems) program=(pipeline/benchmark.py systems --output "$output") ;;
    kernels)
        require "$RUNS/pretrain/FINISHED" "$RUNS/pretrain is not finished; sbatch slurm/pretrain.sh resumes it"
        program=(pipeline/plot_kernels.py "$RUNS/pretrain/last" --output "$output")
        ;;
    *) fail "measure.sh takes bert_score, blanc, judge, systems or kernels, not '$KIND'" ;;
esac
own=${KIND^^}_ARGUMENTS
program+=(${!own} "$@")
check "${program[@]}"
progress() { cat "$output/$KIND"{-*.jsonl,.json} 2>/dev/null | wc -l; }
work "$RUNS/logs/$name-$SLURM_JOB_ID" here $CONTAINER "$PYTHON" "${program[@]}"
rmdir "$RUNS/logs/$name-$SLURM_JOB_ID"
touch "$marker"
say "ended with status 0"
