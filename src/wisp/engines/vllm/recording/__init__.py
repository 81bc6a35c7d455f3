"""From what the taps hear to a file.

`wisp record MODEL`: `recorded_run` starts an engine in a process of its own and has an `engine_recorder` beside it.
`wisp record URL`: the client asks the API server's routes (`endpoint`), those ask a method of the engine's core
(`recording_service`), which holds an `engine_recorder`. That one has a `scheduler_recorder` at its side and a
`worker_recorder` in every worker, and joins what both have kept since it was last asked to a piece, which is one
`wisp.recording.Recording`; the client joins the pieces and writes them.
"""
