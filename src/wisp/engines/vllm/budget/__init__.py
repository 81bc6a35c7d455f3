"""`gpu_memory`, where it is set: what it contradicts (`config`), whether the device has it free (`start_room`), and how
it is divided between slots and KV once the engine has measured the rest (`start_plan`).
"""
