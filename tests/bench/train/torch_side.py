# SPDX-License-Identifier: MIT
"""PyTorch's side of bench-train: the two models on the same raw uint8 file, shuffled each epoch.

usage: torch_side.py MODEL FILE H W C ROWS BATCH THREADS EPOCHS SETTING
SETTING: words joined by '+': plain, last (channels_last), compile. The first epoch is the warm-up;
prints images/s of each epoch, as the other side does.
"""
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class KerasCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 32, 3)
        self.c2 = nn.Conv2d(32, 64, 3)
        self.f1 = nn.Linear(9216, 128)
        self.f2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c2(F.relu(self.c1(x)))), 2)
        return self.f2(F.relu(self.f1(torch.flatten(x, 1))))


class Block(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.c1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(k, eps=1e-3, momentum=0.01)
        self.c2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(k, eps=1e-3, momentum=0.01)
        self.short = None
        if stride > 1:
            self.short = nn.Conv2d(c, k, 1, stride, bias=False)
            self.bs = nn.BatchNorm2d(k, eps=1e-3, momentum=0.01)

    def forward(self, x):
        y = self.b2(self.c2(F.relu(self.b1(self.c1(x)))))
        return F.relu(y + (self.bs(self.short(x)) if self.short else x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.b = nn.BatchNorm2d(16, eps=1e-3, momentum=0.01)
        blocks, c = [], 16
        for stage in range(3):
            for i in range(3):
                k = 16 << stage
                blocks.append(Block(c, k, 2 if stage and i == 0 else 1))
                c = k
        self.blocks = nn.Sequential(*blocks)
        self.f = nn.Linear(64, 10)

    def forward(self, x):
        return self.f(self.blocks(F.relu(self.b(self.c(x)))).mean((2, 3)))


def optimizer(model, name):
    """The kernels of ResNet-20's convolutions are regularised with .0001 sum w^2 on both sides."""
    decay = 2e-4 if name == "resnet20" else 0.0
    kernels = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    ids = {id(p) for p in kernels}
    rest = [p for p in model.parameters() if id(p) not in ids]
    groups = [{"params": kernels, "weight_decay": decay}, {"params": rest}]
    try:
        return torch.optim.SGD(groups, lr=0.02, momentum=0.9, fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.SGD(groups, lr=0.02, momentum=0.9)


def main():
    name, path = sys.argv[1:3]
    h, w, c, rows, batch, threads, epochs = map(int, sys.argv[3:10])
    setting = sys.argv[10].split("+")
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    raw = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8)
    images = raw[: rows * h * w * c].view(rows, h, w, c)
    labels = raw[rows * h * w * c :].long()
    model = KerasCnn() if name == "keras_cnn" else ResNet20()
    last = "last" in setting
    if last:
        model = model.to(memory_format=torch.channels_last)
    opt = optimizer(model, name)

    def loss_of(x, y):
        return F.cross_entropy(model(x), y)

    if "compile" in setting:
        loss_of = torch.compile(loss_of)
    for epoch in range(epochs):
        order = torch.randperm(rows)
        start, n, total = time.perf_counter(), 0, 0.0
        best = 1e9
        while n + batch <= rows:
            cpu = time.process_time()
            index = order[n : n + batch]
            x = images[index].permute(0, 3, 1, 2).float().mul_(1 / 255)
            x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
            opt.zero_grad(set_to_none=True)
            loss = loss_of(x, labels[index])
            loss.backward()
            opt.step()
            total += loss.item()
            n += batch
            best = min(best, time.process_time() - cpu)
        took = time.perf_counter() - start
        print(f"epoch {epoch} images_per_second {n / took:.1f} per_cpu_second {batch / best:.1f} "
              f"loss {total * batch / n:.4f}", flush=True)
    print(f"rss_kb {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
    print(f"version {torch.__version__}")


main()
