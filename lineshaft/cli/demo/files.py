"""The demo's job files and settings, made for one state folder."""

from pathlib import Path

BASE_NAME = "qwen-tiny-base"
MODEL_NAME = "domain-chat"
PRETRAIN_STEPS = 150
SLOTS = 2


def settings(folder: Path) -> str:
    """Return the platform's settings: one node with two CPU slots, paths below ``folder``."""
    return f"""\
# Settings of this demo's platform; `lineshaft up` reads them when they are named with --config.
mounts = ["{folder}"]

[[nodes]]
name = "local"
gpu_type = "cpu"
slots = {SLOTS}
"""


def pretrain(data: Path, models: Path) -> str:
    """Return the job that makes the base model out of a configuration and a text corpus."""
    return f"""\
apiVersion: lineshaft.io/v1
kind: TrainingJob
metadata:
  name: qwen-tiny-pretrain
spec:
  jobType: pretrain
  model: {data}/model/config.json
  tokenizer: {data}/tokenizer
  datasets:
    - name: docstrings-corpus
      path: {data}/corpus.jsonl
      format: jsonl
  resources:
    gpuType: cpu
    gpuCount: {SLOTS}
    nodeCount: 1
  hyperparameters:
    maxSteps: {PRETRAIN_STEPS}
    batchSize: 8
    sequenceLength: 128
    learningRate: 3e-3
    warmupRatio: 0.1
    distributedStrategy: ddp
  checkpoint:
    everySteps: 75
  output:
    modelSavePath: {models}/{BASE_NAME}
    modelName: {BASE_NAME}
"""


def finetune(data: Path, models: Path) -> str:
    """Return the fine-tuning job, with a checkpoint every 100 steps and an evaluation suite."""
    return f"""\
# train-job.yaml
apiVersion: trainer.example.io/v1
kind: TrainingJob
metadata:
  name: domain-chat-finetune-v1
spec:
  jobType: full-finetune
  model: {BASE_NAME}@latest
  datasets:
    - name: domain-qa-202406
      path: {data}/train.jsonl
      format: jsonl
  resources:
    gpuType: cpu
    gpuCount: {SLOTS}
    nodeCount: 1
  hyperparameters:
    epochs: 3
    batchSize: 4
    learningRate: 1e-5
    distributedStrategy: deepspeed-zero2
  checkpoint:
    everySteps: 100
  evaluation:
    suites:
      - {data}/suite.json
  output:
    modelSavePath: {models}/{MODEL_NAME}
"""
