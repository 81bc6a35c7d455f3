import json
import struct
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demo"
MODEL = DEMO / "model"
CONFIG = json.loads((MODEL / "config.json").read_text())

TEXTS = [
    'def add(a, b):\n    """Sum."""\n    return a + b\n',
    "It was the whale -- the white whale! \u201cCall me Ishmael.\u201d",
    'NAME\n       tar - an archiving utility\n\n       -x, --extract\n\tset -e; case "$1" in *) ;; esac',
    "\u732b \U0001f40b e\u0301 \x00\r\n",
]


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODEL)


def tensor_headers():
    with (MODEL / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def test_weights_fit_in_16_megabytes():
    assert (MODEL / "model.safetensors").stat().st_size <= 16_000_000


def test_config_says_32_experts_of_which_4_in_every_layer():
    assert CONFIG["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (CONFIG["num_experts"], CONFIG["num_experts_per_tok"]) == (32, 4)
    assert CONFIG["num_hidden_layers"] == 6
    assert CONFIG["norm_topk_prob"] is True
    assert CONFIG["decoder_sparse_step"] == 1
    assert CONFIG["mlp_only_layers"] == []


def test_checkpoint_holds_every_expert_in_bf16_and_the_configured_shape():
    headers = tensor_headers()
    assert {entry["dtype"] for entry in headers.values()} == {"BF16"}
    hidden, width = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp"
        assert headers[f"{prefix}.gate.weight"]["shape"] == [CONFIG["num_experts"], hidden]
        for expert in range(CONFIG["num_experts"]):
            names = [f"{prefix}.experts.{expert}.{part}_proj.weight" for part in ("gate", "up", "down")]
            shapes = [headers.pop(name)["shape"] for name in names]
            assert shapes == [[width, hidden], [width, hidden], [hidden, width]]
    assert not [name for name in headers if ".experts." in name]
    assert headers["model.embed_tokens.weight"]["shape"] == [CONFIG["vocab_size"], hidden]
    assert "lm_head.weight" not in headers
    assert CONFIG["tie_word_embeddings"] is True


def test_shape_suits_cpu_kernels_and_two_way_tensor_parallelism():
    assert CONFIG["hidden_size"] % 32 == 0
    assert CONFIG["moe_intermediate_size"] % (2 * 32) == 0
    assert CONFIG["num_attention_heads"] % 2 == 0
    assert CONFIG["num_key_value_heads"] % 2 == 0


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trips_any_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert max(ids) < CONFIG["vocab_size"]
    assert tokenizer.decode(ids) == text


def test_special_tokens_agree_with_the_configuration(tokenizer):
    assert len(tokenizer) == CONFIG["vocab_size"]
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == CONFIG["eos_token_id"]
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == tokenizer.pad_token_id == CONFIG["pad_token_id"]
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert CONFIG["eos_token_id"] in generation["eos_token_id"]


def test_chat_template_renders_turns_and_opens_the_answer(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [{"type": "text", "text": "Continue."}]},
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n"
        "<|im_start|>user\nContinue.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 5
    assert ids.count(tokenizer.eos_token_id) == 4


def test_demo_conversations_cover_the_three_domains():
    prompts = json.loads((DEMO / "prompts.json").read_text())
    assert [c["domain"] for c in prompts["conversations"]] == ["python", "prose", "shell"]
    assert all(2 <= len(c["turns"]) <= 3 for c in prompts["conversations"])
