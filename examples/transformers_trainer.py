"""Transformers' Trainer on the switch: it uses the process group that is there already, by whatever backend.

    torchrun --standalone --nproc-per-node 2 examples/transformers_trainer.py [--backend gloo]

Gradients go through the switch; Gloo does other collectives, such as gathering the losses that are logged.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    dist.init_process_group(parser.parse_args().backend)  # before TrainingArguments, which would choose Gloo

    set_seed(0)
    tokens = torch.randint(64, (64, 12))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=12, n_embd=32, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=8,
            per_device_train_batch_size=4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        result = Trainer(model, arguments, train_dataset=data).train()
    mean = torch.tensor(result.training_loss)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    total = sum(parameter.double().abs().sum() for parameter in model.parameters())
    print(f"rank {dist.get_rank()}: loss {mean:.4f}, parameters {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
