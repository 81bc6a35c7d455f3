"""As much of vLLM's engine core as a recorder wraps: a scheduler, its block pool and an executor with workers."""

from types import SimpleNamespace


def make_hash(number):
    return number.to_bytes(32, "little") + bytes(4)


def make_blocks(count):
    return [SimpleNamespace(block_hash=None) for _ in range(count)]


def make_request(prompt):
    return SimpleNamespace(num_tokens=prompt, num_computed_tokens=0, num_output_tokens=0, num_output_placeholders=0)


class Pool:
    """A request's blocks are named by the numbers in its list; the first block of a name is the one that is found."""

    num_gpu_blocks = 9

    def __init__(self):
        self.blocks = []
        self.cached = {}
        self.cached_block_hash_to_block = SimpleNamespace(get_one_block=self.cached.get)

    def touch(self, blocks):
        pass

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id):
        for number, block in list(enumerate(blocks))[num_cached_blocks:num_full_blocks]:
            block.block_hash = make_hash(request[number])
            self.cached.setdefault(block.block_hash, block)


class Scheduler:
    """`schedule` returns what it is given, and counts it as computed."""

    block_size = 16

    def __init__(self):
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool())
        self.requests = {}

    def schedule(self, *, drafts=0, **tokens):
        """`drafts` of the tokens of each request are a draft model's."""
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens={name: [0] * drafts for name in tokens if drafts},
        )

    def _preempt_request(self, request, timestamp):
        pass


class Worker:
    """A rank whose pagers need, in each step, the experts that `needs` holds for it: [layer][wave]."""

    def __init__(self, vllm_config, rank, layers):
        self.vllm_config, self.rank, self.needs = vllm_config, rank, []
        self.pagers = [SimpleNamespace(observe=None, resident=SimpleNamespace(num_experts=8)) for _ in range(layers)]

    def execute_model(self, output):
        if not output.total_num_scheduled_tokens:
            return "nothing"
        for pager, waves in zip(self.pagers, self.needs.pop(0), strict=True):
            if pager.observe is not None:
                pager.observe(SimpleNamespace(waves=[SimpleNamespace(experts=experts) for experts in waves]))
        return "ran"


class Core:
    """An engine core whose workers run what is scheduled at once, or, if `is_behind`, a step later."""

    def __init__(self, *, stages=1, ranks=1, layers=2, is_behind=False, settings=None):
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
            additional_config={"wisp": settings or {"expert_slots": 4, "recordable": True}},
        )
        self.scheduler = Scheduler()
        self.workers = [Worker(self.vllm_config, rank, layers) for rank in range(stages * ranks)]
        self.model_executor = SimpleNamespace(collective_rpc=self._call)
        self.is_behind, self._queue = is_behind, []

    def step(self, needs, **tokens):
        """Schedule and run one step; `needs` is what each layer of each worker does, None of a step without tokens."""
        if needs is not None:
            for worker in self.workers:
                worker.needs.append(needs)
        self._queue.append(self.scheduler.schedule(**tokens))
        self.run(self.is_behind)

    def run(self, leave=0):
        while len(self._queue) > leave:
            output = self._queue.pop(0)
            for worker in self.workers:
                worker.execute_model(output)

    def _call(self, method, timeout=None, args=(), kwargs=None):
        self.run()  # messages reach the workers in order
        return [method(SimpleNamespace(worker=worker), *args) for worker in self.workers]


def paging_of(worker):
    """The pagers of a fake worker, in the place of those that its layers would have made."""
    return SimpleNamespace(
        layers=[SimpleNamespace(store=SimpleNamespace(expert_bytes=100))] * len(worker.pagers),
        pagers=dict(enumerate(worker.pagers)),
        in_graph=None,
        slots=4,
    )


def paging_left_alone(worker):
    """The same where every expert has a slot and the engine's kernel was left alone."""
    return SimpleNamespace(layers=["layer"] * len(worker.pagers), pagers={}, in_graph=None)


def is_untouched(core):
    """Whether nothing is wrapped, neither the scheduler nor a worker."""
    pool = core.scheduler.kv_cache_manager.block_pool
    return (
        vars(core.scheduler).keys() == {"kv_cache_manager", "requests"}
        and vars(pool).keys() == {"blocks", "cached", "cached_block_hash_to_block"}
        and all(vars(worker).keys() == {"vllm_config", "rank", "needs", "pagers"} for worker in core.workers)
        and all(pager.observe is None for worker in core.workers for pager in worker.pagers)
    )
