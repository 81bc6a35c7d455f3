"""How a recording of a server is asked for over HTTP. Imports no engine, so that a client can share it.

    POST /v1/wisp/recordings                 -> {"ticket": "..."}
    POST /v1/wisp/recordings/TICKET/take     -> what was recorded since: an .npz, empty if no step was
    POST /v1/wisp/recordings/TICKET/finish   -> the rest, and the recording ends

`take` and `finish` say more in a header: {"seconds": what recording has cost the engine so far, "ended": why it has
ended by itself, or null}. An error is {"error": "..."} with status 409. Below /v1, `--api-key` guards the routes; they
exist only where `recordable` is set.
"""

ROUTE = "/v1/wisp/recordings"
HEADER = "Wisp-Recording"
REFUSED = 409
