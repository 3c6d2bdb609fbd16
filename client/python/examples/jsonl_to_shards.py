#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From JSON Lines and a tokenizer to shards, once: jsonl_to_shards.py IN.jsonl DIRECTORY [TOKENIZER]

TOKENIZER is a tokenizer.json for the package `tokenizers`; without one the text's bytes are the ids.
"""
import json
import sys

import numpy as np
import stoker


def make_encoder(path):
    if path is None:
        return lambda text: np.frombuffer(text.encode(), np.uint8)
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(path)
    return lambda text: np.array(tokenizer.encode(text).ids, np.uint32)


def main():
    source, directory = sys.argv[1:3]
    encode = make_encoder(sys.argv[3] if len(sys.argv) > 3 else None)

    def sample(line):
        item = json.loads(line)
        return {"input_ids": encode(item["question"] + "\n" + item["answer"])}

    with open(source, encoding="utf-8") as lines:
        print(stoker.cache(lines, directory, map=sample))


if __name__ == "__main__":
    main()
