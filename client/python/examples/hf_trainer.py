#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer fed by stoker: hf_trainer.py SHARDS OUTPUT [STEPS]

Run again after it was killed it goes on from its last checkpoint: the loader's state lies beside it.
"""
import json
import os
import sys

import stoker
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Feed(Trainer):
    """Trainer with a stoker.Loader in place of its DataLoader."""

    loader = None

    def get_train_dataloader(self):
        return self.loader


class SaveLoader(TrainerCallback):
    """Trainer fetches one batch ahead at most; the loader was told so (lookahead) and knows what was trained."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **unused):
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        with open(os.path.join(folder, f"stoker-{args.process_index}.json"), "w") as f:
            json.dump(self.loader.state_dict(), f)


def main():
    shards, output = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    transformers.set_seed(1)
    last = get_last_checkpoint(output) if os.path.isdir(output) else None
    state = None
    if last:
        with open(os.path.join(last, f"stoker-{os.environ.get('RANK', 0)}.json")) as f:
            state = json.load(f)
    loader = stoker.Loader(shards, tokens=2048, buckets=8, seed=17, max_length=128, state=state)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4,
                                       bos_token_id=0, eos_token_id=0))
    # ignore_data_skip: the loader continues where it was, so nothing has to be read over.
    trainer = Feed(model=model, args=TrainingArguments(
        output, max_steps=steps, save_steps=20, logging_steps=10, learning_rate=3e-3, report_to=[],
        ignore_data_skip=True, disable_tqdm=True), callbacks=[SaveLoader(loader)])
    trainer.loader = loader
    trainer.train(resume_from_checkpoint=last)
    print("trained to step", trainer.state.global_step)


if __name__ == "__main__":
    main()
