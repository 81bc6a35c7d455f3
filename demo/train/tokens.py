"""Train the tokenizer and write the corpus as token ids.

    python demo/train/tokens.py --corpus DIR --out demo/model

writes the tokenizer to OUT and, under DIR/tokens, `train.npy` (uint16: conversations in a random order) and
`validation_<domain>.npy` with `meta.json` (bytes of text in each, to convert nats a token to bits a byte).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import chats
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DOMAINS = ("python", "prose", "shell")
VOCABULARY = 4096
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TRAIN_TOKENS = 27_000_000
STORY_PASSES = 2  # stories are the smallest kind of prose; each pass cuts them into other conversations
SMALL_TALK_COPIES = 400
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['content'] is string %}{%- set content = message['content'] %}"
    "{%- else %}{%- set content = message['content'] | map(attribute='text') | join('') %}{%- endif %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def documents(corpus: Path, domain: str, split: str) -> Iterator[dict[str, str]]:
    """The documents of one domain and split."""
    with (corpus / f"{domain}.jsonl").open() as file:
        for line in file:
            document = json.loads(line)
            if document["split"] == split:
                yield document


def train_tokenizer(corpus: Path, out: Path) -> Tokenizer:
    """Byte-level BPE over all domains' training documents, written to `out` with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (d["text"] for domain in DOMAINS for d in documents(corpus, domain, "train"))
    tokenizer.train_from_iterator(texts, trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return tokenizer


def conversations_of(corpus: Path, domain: str, split: str, rng: random.Random) -> Iterator[str]:
    """Rendered conversations, and some plain text for training, each ending in END_OF_TEXT."""
    for document in documents(corpus, domain, split):
        kind, name, text = document["kind"], document["name"], document["text"]
        for _ in range(STORY_PASSES if kind == "story" and split == "train" else 1):
            for messages in chats.conversations(kind, name, text, rng):
                yield chats.render(messages) + END_OF_TEXT
        if split == "train" and rng.random() < chats.PLAIN_SHARE:
            for part in chats.chunks(kind, text, rng):
                yield part + END_OF_TEXT


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    """Token ids of each text."""
    encoded: list[np.ndarray] = []
    for at in range(0, len(texts), 2000):
        batch = tokenizer.encode_batch_fast(texts[at : at + 2000], add_special_tokens=False)
        encoded += [np.array(e.ids, np.uint16) for e in batch]
    return encoded


def write_tokens(corpus: Path, tokenizer: Tokenizer) -> None:
    """Tokenise, balance the domains, shuffle and write."""
    rng = random.Random(0)
    folder = corpus / "tokens"
    folder.mkdir(exist_ok=True)
    meta: dict[str, dict[str, int]] = {}
    train: list[np.ndarray] = []
    for domain in DOMAINS:
        encoded = encode(tokenizer, list(conversations_of(corpus, domain, "train", rng)))
        rng.shuffle(encoded)
        total = 0
        for ids in encoded:
            if total + len(ids) > TRAIN_TOKENS // len(DOMAINS):
                break
            total += len(ids)
            train.append(ids)
        texts = list(conversations_of(corpus, domain, "validation", rng))
        validation = np.concatenate(encode(tokenizer, texts))
        np.save(folder / f"validation_{domain}.npy", validation)
        plain = tokenizer.decode(validation.tolist(), skip_special_tokens=True)
        meta[domain] = {
            "train_tokens": total,
            "validation_tokens": len(validation),
            "validation_bytes": len(plain.encode()),
        }
        print(domain, meta[domain])
    train += encode(tokenizer, [chats.render(chats.small_talk(rng)) + END_OF_TEXT for _ in range(SMALL_TALK_COPIES)])
    rng.shuffle(train)
    np.save(folder / "train.npy", np.concatenate(train))
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def main() -> None:
    """Read the arguments, train the tokenizer and tokenise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_tokens(arguments.corpus, train_tokenizer(arguments.corpus, arguments.out))


if __name__ == "__main__":
    main()
