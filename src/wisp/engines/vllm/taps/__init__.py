"""What a running engine does, heard while it runs: the scheduler in its core, and each worker's steps and routing.

A worker's forward pass is heard by `worker_tap`, and its layers' sets of experts are read by a `routing_source`: from
the pagers' plans where the host decides, from the ring where the device does (`device_routing`). The step's requests,
phases and KV blocks are heard by `scheduler_tap`, in the core. From here a step goes two ways:

- to a file: `recording.worker_recorder` and `recording.scheduler_recorder` keep them, `recording.engine_recorder` joins
  the two by their order, and a client takes the pieces (see `recording`);
- to `wisp stats --curves`: `metering.expert_meter` and `metering.kv_meter` count them into fading histograms, of which
  `metering.meters` reads the curves when it is asked (see `metering`).

Nothing here is wrapped while nobody listens.
"""
