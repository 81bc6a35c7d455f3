"""The pager: torch, no engine. `pager.ExpertPager` is the entrance; `store`, `pool` and `counters` are its parts."""
