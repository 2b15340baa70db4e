"""Files that are copied as they are into an output folder. They need torch, safetensors and numpy, never dmlc.

Every folder gets `FILES`; one that trains gets `TRAINING_FILES` too, and `launch_train.sh` as its `launch.sh`.
"""

FILES = ("runtime.py", "in_order.py", "launch.py", "sizes.py", "timing.py", "timeline.py", "alone.py")

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
