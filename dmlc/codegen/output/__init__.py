"""Files that are copied as they are into an output folder. They need torch, safetensors and numpy, never dmlc.

Every folder gets `runtime.py` and `launch.py`; one that trains gets these too, and `launch_train.sh` as its `launch.sh`.
"""

TRAINING_FILES = (
    "train.py",
    "start.py",
    "trainer.py",
    "settings.py",
    "data.py",
    "state.py",
    "schedule.py",
    "metrics.py",
    "guard.py",
    "checkpoint.py",
    "export.py",
    "slurm.sh",
)
