#!/bin/sh
# Trains on this machine, one process a rank. On several machines run it on each with
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=first-host MASTER_PORT=29500 ./launch.sh ...
# (the weights are read on each machine; checkpoints need a folder that all see). MAX_RESTARTS: how often a lost rank restarts the job.
# LOCAL_ADDR: this machine's address, where the others cannot resolve its host name.
folder=$(cd "$(dirname "$0")" && pwd)
ranks=$(sed -n 's/^RANKS = //p' "$folder/table.py")
nodes=${NNODES:-1}
if [ "$((ranks % nodes))" -ne 0 ]; then
    echo "$ranks ranks do not divide over $nodes machines" >&2
    exit 2
fi
if [ "$nodes" -eq 1 ]; then
    set -- --standalone --nproc-per-node "$ranks" --max-restarts "${MAX_RESTARTS:-0}" -- "$folder/launch.py" "$@"
else
    # Machine 0 is told to be the host: torchrun would compare names, which fails where a machine does not know its own address.
    set -- --nnodes "$nodes" --nproc-per-node "$((ranks / nodes))" --rdzv-backend c10d --rdzv-id "${JOB_ID:-dmlc}" \
        --rdzv-conf "is_host=$((${NODE_RANK:?the number of this machine} == 0))" \
        --rdzv-endpoint "${MASTER_ADDR:?the first machine}:${MASTER_PORT:-29500}" ${LOCAL_ADDR:+--local-addr "$LOCAL_ADDR"} \
        --max-restarts "${MAX_RESTARTS:-0}" -- "$folder/launch.py" "$@"
fi
exec "${PYTHON:-python3}" -m torch.distributed.run "$@"
