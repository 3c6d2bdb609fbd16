#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer fed by stoker: lightning.py SHARDS OUTPUT [STEPS]

The loader's state travels in Lightning's checkpoints; run again after it was killed it goes on from the
last one.
"""
import os
import sys

sys.path.pop(0)  # where this file lies, which has the name of the package
try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl
import stoker
import torch
from torch import nn


class Model(pl.LightningModule):
    def __init__(self, loader):
        super().__init__()
        self.loader = loader
        self.tokens, self.memory, self.head = nn.Embedding(256, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 256)

    def training_step(self, batch, index):
        hidden, _ = self.memory(self.tokens(batch["input_ids"][:, :-1]))
        logits = self.head(hidden).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten())
        self.trained = batch  # a stoker.Batch: Lightning moves it by its own to()
        if index % 10 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f} ids {batch.sample_ids[:4].tolist()}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        # Lightning fetches ahead: the state is that of the batch that was trained last.
        checkpoint["stoker"] = self.loader.state_dict(after=self.trained)

    def on_load_checkpoint(self, checkpoint):
        self.loader.load_state_dict(checkpoint["stoker"])


class Plain:
    """Hides state_dict(): the model saves the loader's state, with the batch that was trained last."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)


def main():
    shards, output = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    pl.seed_everything(1)
    loader = stoker.Loader(shards, tokens=2048, buckets=8, seed=17, max_length=128)
    saver = pl.callbacks.ModelCheckpoint(output, every_n_train_steps=20, save_top_k=-1, save_last=True)
    trainer = pl.Trainer(accelerator="cpu", max_steps=steps, callbacks=[saver], logger=False,
                         enable_progress_bar=False, enable_model_summary=False)
    last = os.path.join(output, "last.ckpt")
    trainer.fit(Model(loader), Plain(loader), ckpt_path=last if os.path.exists(last) else None)
    print("trained to step", trainer.global_step)


if __name__ == "__main__":
    main()
