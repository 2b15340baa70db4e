"""`trace.json`: what ran when, as Chrome's trace format with Kineto's fields, so that Perfetto shows a simulated step beside a profiled one.

Conventions, the same for a simulated step and for the record that a real run writes of itself:

    document   {"schemaVersion": 1, "deviceProperties": [{"id", "name", "totalGlobalMem", "numSms"}], "displayTimeUnit": "ms",
               "baseTimeNanoseconds": 0, "distributedInfo": {"backend", "rank", "world_size", "pg_count", "pg_config":
               [{"pg_name", "pg_desc", "backend_config", "pg_size", "ranks"}]}, "traceName", "dmlc": {"kind": "simulated" | "measured"},
               "traceEvents": [...]}. One file a rank; a merged file has the first rank's distributedInfo.
    times      `ts` and `dur` in microseconds with three decimals, the step begins at 0. Begin and end are each cut to whole nanoseconds,
               so that neighbours on a row never overlap.
    processes  the device of rank r is pid r, its host pid 1000000 + r. `M` events, all with ts 0: process_name ("rank 0 (simulated)",
               "rank 0 (measured)"; host "python"), process_labels ("GPU 0" or "CPU 0"; host "CPU"), process_sort_index
               (5000000 + r; host r), and for each row thread_name and thread_sort_index (= tid).
    rows       one a stream, named by thread_name: "compute" is tid 7; "comm data" ("comm " and the mesh axes joined by commas) is tid 20,
               21, ... in the order of first use; tid 1 of the host is "host". The names are what two traces are compared by.
    events     ph "X". An op has an event if `dmlc.simulate.rows.is_shown(op)`, on row `row_of(op)`, called `name_of(op)`; its args hold
               "dmlc.op" (the op's id; several runs in a step are several events in their order). Category "kernel" on a gpu, "cpu_op" on a cpu.
               A collective, started or waited for at once, is an event of its comm row only, under the id of its start.
               A `comm.wait` is always an event of the compute row, as long as it blocks what follows (0 where it blocks nothing).
    args       of events with "dmlc.op": "device" (= pid), "stream" (= tid), "correlation" and "External id" (rank * 10000000 + n, n from 1),
               "dmlc.kind" (category of op), and what is known of "dmlc.cost_source" (measured | table | model | default), "dmlc.flops",
               "dmlc.bytes", "dmlc.err_pct". A measured event has neither cost nor error.
    NCCL       events of comm rows also have "Collective name" ("all_reduce"), "dtype" (c10's: "Float", "BFloat16"), "In msg nelems",
               "Out msg nelems", "In split size", "Out split size" ([]), "Group size", "Process Group Name", "Process Group Description"
               (the axes), "Process Group Ranks" ([...]), "Rank".
    waits      an arrow from a collective to its wait: ph "s" at the collective's begin, ph "f" with "bp": "e" at the later of that and
               the wait's begin; both have cat "comm", name "wait" and id rank * 10000000 + the collective's n.
    step       "ProfilerStep#0" spans the step: user_annotation on the host's row, gpu_user_annotation on the compute row.
    host       on a gpu the host's row holds each launch: cuda_runtime "cudaLaunchKernel" with the kernel's correlation, inside a cpu_op
               "record_param_comms" with the NCCL args for a collective; an arrow (cat and name "ac2g") goes to the kernel.
    counters   ph "C" of the device: "memory" (bytes by category) and "exposed communication" (1 while computation waits for it, else 0).
"""
