"""The vLLM plug-in.

The main path: `plugin.register` tells vLLM of `layer.PagedRoutedExperts`. `workers` says what a layer shares with the
others of its worker, a `paging.WorkerPaging`. Once all are loaded (`loading`), that one gives each its slots and one of
the `kernels`, which asks a pager of `wisp.pager` for the experts of every step, and has the steps counted (`counting`).

On the way there: `settings` and `checks` (what was asked, and what is refused), `front_end` (what becomes of a
configuration before anything starts), `loading` (checkpoint to backing store), `host_memory` (does that fit), `budget`
(`gpu_memory` divided between slots and KV), `patches` (one symbol of vLLM a file). What runs is counted (`counters`),
heard (`taps`), kept (`recording`), metered (`metering`), checked (`integrity`) and compared (`verify`).
"""
