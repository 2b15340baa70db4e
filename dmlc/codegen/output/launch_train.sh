#!/bin/sh
# Trains on this machine, one process a rank. On several machines run it on each with
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=first-host MASTER_PORT=29500 ./launch.sh ...
# (checkpoints need a folder that all see). MAX_RESTARTS: how often a lost rank restarts the job, which then goes on from the last checkpoint.
# LOCAL_ADDR: this machine's address, where the others cannot resolve its host name.
# SIGTERM or SIGINT ends it cleanly, with a checkpoint.
exec "${PYTHON:-python3}" "$(dirname "$0")/launch.py" "$@"
