"""From a worker's counters to /metrics and `wisp stats`: a worker keeps them in a file (`counter_files`), and the front
end's `collector` reads all files at every scrape.
"""
