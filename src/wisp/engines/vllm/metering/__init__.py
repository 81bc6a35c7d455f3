"""From what the taps hear to `wisp stats --curves`.

At the start of a server that was asked to `measure`, and with every GET of its curves, `endpoint` asks a method of the
engine's core (`meter_service`), which holds the `meters`: a `kv_meter` at its side, and an `expert_meter` in every
worker where the host decides. Where the device decides, the worker follows its ring all along
(`wisp.pager.routing_histogram`), and is only asked. Curves of stages are added; nothing is kept of single steps.
"""
