"""`gpu_memory`: what it contradicts, whether the device has it free, and how it is divided between slots and KV."""
