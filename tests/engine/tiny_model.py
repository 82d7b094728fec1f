#!/usr/bin/env python3
"""Writes a tiny llama-architecture GGUF with random weights: tiny_model.py OUT.gguf (needs gguf and numpy).

Byte-level vocabulary, one layer: what it says is noise, but the engine binds a forced tool call to the tool's grammar.
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

WIDTH, FEED_FORWARD, HEADS, CONTEXT = 64, 128, 4, 2048
UNKNOWN, NORMAL, CONTROL, BYTE = 2, 1, 3, 6  # gguf's token types


def main(path: str) -> None:
    random = np.random.default_rng(7)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    tokens += ["\u2581"] + [chr(code) for code in range(33, 127)]
    types += [NORMAL] * (len(tokens) - len(types))

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def noise(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    noise("token_embd.weight", len(tokens), WIDTH)
    noise("output.weight", len(tokens), WIDTH)
    ones("output_norm.weight")
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        noise(f"blk.0.{part}.weight", WIDTH, WIDTH)
    noise("blk.0.ffn_gate.weight", FEED_FORWARD, WIDTH)
    noise("blk.0.ffn_up.weight", FEED_FORWARD, WIDTH)
    noise("blk.0.ffn_down.weight", WIDTH, FEED_FORWARD)
    ones("blk.0.attn_norm.weight")
    ones("blk.0.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
