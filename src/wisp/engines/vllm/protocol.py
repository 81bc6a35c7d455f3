"""What a server of ours answers over HTTP beside vLLM's own. Imports no engine, so that a client can share it.

Recording, where `recordable` is set:

    POST /v1/wisp/recordings                 -> {"ticket": "..."}
    POST /v1/wisp/recordings/TICKET/take     -> what was recorded since: an .npz, empty if no step was
    POST /v1/wisp/recordings/TICKET/finish   -> the rest, and the recording ends

`take` and `finish` say more in a header: {"seconds": what recording has cost the engine so far, "ended": why it has
ended by itself, or null}.

Metering, where `measure` is set:

    GET /v1/wisp/curves                      -> misses a step by slots and by KV blocks; see `Meters.read`

An error is {"error": "..."} with status 409. Below /v1, `--api-key` guards all of them.
"""

PREFIX = "/v1/wisp"
RECORDINGS = f"{PREFIX}/recordings"
CURVES = f"{PREFIX}/curves"
HEADER = "Wisp-Recording"
REFUSED = 409
