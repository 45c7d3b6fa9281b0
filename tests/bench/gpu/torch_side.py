# SPDX-License-Identifier: MIT
"""PyTorch's side of bench-gpu: the same networks, rows on the GPU as uint8, channels_last.

usage: torch_side.py CASE PRECISION BATCH SECONDS SETTING... [--cpu]
SETTING: plain, or compile (torch.compile with CUDA graphs). Prints one JSON line for each.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class KerasCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.f1, self.f2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c2(F.relu(self.c1(x)))), 2)
        return self.f2(F.relu(self.f1(torch.flatten(x, 1))))


def conv_norm(c, k, size, stride):
    return nn.Sequential(nn.Conv2d(c, k, size, stride, size // 2, bias=False), nn.BatchNorm2d(k))


class Block(nn.Module):
    def __init__(self, c, k, stride, wide):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        if wide:
            parts = [conv_norm(c, k, 1, 1), relu, conv_norm(k, k, 3, stride), relu, conv_norm(k, 4 * k, 1, 1)]
        else:
            parts = [conv_norm(c, k, 3, stride), relu, conv_norm(k, k, 3, 1)]
        out = 4 * k if wide else k
        self.body = nn.Sequential(*parts)
        self.short = conv_norm(c, out, 1, stride) if stride > 1 or c != out else nn.Identity()
        self.out = out

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, blocks, width, classes, wide):
        super().__init__()
        head = [conv_norm(3, width, 7 if wide else 3, 2 if wide else 1), nn.ReLU(inplace=True)]
        if wide:
            head.append(nn.MaxPool2d(3, 2, 1))
        c, body = width, []
        for stage, n in enumerate(blocks):
            for i in range(n):
                body.append(Block(c, width << stage, 2 if stage and not i else 1, wide))
                c = body[-1].out
        self.body = nn.Sequential(*head, *body)
        self.f = nn.Linear(c, classes)

    def forward(self, x):
        return self.f(self.body(x).mean((2, 3)))


CASES = {
    "keras_cnn": (KerasCnn, (1, 28, 28), 10),
    "resnet20": (lambda: ResNet([3, 3, 3], 16, 10, False), (3, 32, 32), 10),
    "resnet50": (lambda: ResNet([3, 4, 6, 3], 64, 1000, True), (3, 224, 224), 1000),
}


def trainer(case, precision, batch, setting, device, rows):
    """A function that does one step."""
    make, shape, classes = CASES[case]
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)
    model = make().to(device).to(memory_format=torch.channels_last).train()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=precision == "f16")
    x_all = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, device=device)
    x_all = x_all.to(memory_format=torch.channels_last)
    y_all = torch.arange(rows, device=device) % classes

    def forward(x, y):
        x = x.float().mul_(1 / 255)
        flip = torch.rand(x.shape[0], 1, 1, 1, device=device) < 0.5
        x = torch.where(flip, x.flip(3), x).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            return F.cross_entropy(model(x), y)

    if setting == "compile":
        forward = torch.compile(forward, mode="reduce-overhead")

    def step():
        i = torch.randint(0, rows, (batch,), device=device)
        opt.zero_grad(set_to_none=True)
        loss = forward(x_all[i], y_all[i])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss

    return step


def images_per_s(step, batch, seconds, wait, warm):
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < warm[0] or n < warm[1]:
        step()
        n += 1
    wait()
    images, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            step()
        wait()
        images += 10 * batch
    return images / (time.perf_counter() - begin)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("case", choices=CASES)
    p.add_argument("precision", choices=["f32", "tf32", "bf16", "f16"])
    p.add_argument("batch", type=int)
    p.add_argument("seconds", type=float)
    p.add_argument("setting", nargs="+", choices=["plain", "compile"])
    p.add_argument("--cpu", action="store_true", help="on the cores: shows that it runs, and no more")
    a = p.parse_args()
    device = "cpu" if a.cpu else "cuda"
    wait = (lambda: None) if a.cpu else torch.cuda.synchronize
    for setting in a.setting:
        step = trainer(a.case, a.precision, a.batch, setting, device, 32 if a.cpu else 2048)
        rate = images_per_s(step, a.batch, a.seconds, wait, (0, 1) if a.cpu else (2, 20))
        print(json.dumps({"case": a.case, "precision": a.precision, "batch": a.batch, "setting": setting,
                          "images_per_s": round(rate, 1), "peer": f"pytorch {torch.__version__} {setting}"}), flush=True)


main()
