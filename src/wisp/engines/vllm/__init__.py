"""The vLLM plug-in. Start at `plugin.register`; `layer.PagedRoutedExperts` is where paging happens."""
