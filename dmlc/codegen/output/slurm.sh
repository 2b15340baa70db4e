#!/bin/bash
# An example for Slurm: sbatch --nodes 2 slurm.sh --steps 10000 ...
# Shortly before the time limit, and when the job is preempted, the ranks stop after a step, write a checkpoint and the job is queued again.
#SBATCH --job-name=dmlc-train
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

folder=${DMLC_FOLDER:-$SLURM_SUBMIT_DIR}
checkpoints=${CHECKPOINTS:-$folder/checkpoints}
export NNODES=$SLURM_NNODES
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500} JOB_ID=$SLURM_JOB_ID
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} MAX_RESTARTS=${MAX_RESTARTS:-3}
mkdir -p "$checkpoints"
rm -f "$checkpoints/stop"

srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec "$0" "$@"' "$folder/launch.sh" \
    --checkpoint-dir "$checkpoints" --checkpoint-every 500 --resume auto "$@" &
training=$!
stopping=
trap 'stopping=1; touch "$checkpoints/stop"' USR1 TERM
wait "$training"
status=$?
while [ -n "$stopping" ] && kill -0 "$training" 2>/dev/null; do
    wait "$training"
    status=$?
done
if [ -n "$stopping" ] && [ "$status" -eq 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
