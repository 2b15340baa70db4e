"""All tables of aten operators, one file a group. Importing this module fills `torch_graph.HANDLERS`."""

from dmlc.frontend import (  # noqa: F401
    torch_ops_attention,
    torch_ops_bags,
    torch_ops_complex,
    torch_ops_experts,
    torch_ops_indexing,
    torch_ops_layers,
    torch_ops_movement,
    torch_ops_pointwise,
    torch_ops_random,
    torch_ops_recurrent,
    torch_ops_reduction,
    torch_ops_source,
)
