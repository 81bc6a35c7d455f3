"""How a step is computed by the engine's own MoE kernel, fed from slots: a file for each kind of kernel.

The host decides for `expert_map` and `slot_ids`, the device for `in_graph` and `planar`, and nobody for `all_resident`.
`run` of each stands in for `fused_experts.apply` on one layer, after the engine has prepared its arguments.
Which a layer gets, `layer_kernels` says.
"""
