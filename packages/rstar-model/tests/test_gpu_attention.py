"""On a GPU: the attention of packed rows by flash-attention and by torch's kernels, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model import attention  # noqa: E402
from rstar_model.packing import pack  # noqa: E402
from rstar_model.policy import Policy  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

HEADS, KEY_HEADS, SIZE = 8, 2, 64
LENGTHS = [700, 3, 129, 1500, 1, 64]


def batch(share_prefix: bool = False):
    prompt = [7] * 50
    rows = [([*prompt, *range(1, length + 1)], [False] * 50 + [True] * length) for length in LENGTHS]
    return pack(rows, share_prefix=share_prefix).to("cuda")


def tensors(tokens: int):
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(1, HEADS, tokens, SIZE), (1, KEY_HEADS, tokens, SIZE), (1, KEY_HEADS, tokens, SIZE)]
    return [torch.randn(shape, device="cuda", dtype=torch.float64, generator=generator) for shape in shapes]


def run(inputs, dtype, packed):
    given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    output, _ = attention.packed_attention(None, *given, None, rstar_batch=packed)
    weight = torch.linspace(-1, 1, output.numel(), device="cuda", dtype=torch.float64).view(output.shape)
    (output.double() * weight).sum().backward()
    return [output.detach().double(), *(tensor.grad.double() for tensor in given)]


def worst(found, expected) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("share_prefix", [False, True])
def test_torch_kernels_agree_with_float64(share_prefix: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash_varlen", lambda: None)
    packed = batch(share_prefix)
    inputs = tensors(len(packed))
    expected = run(inputs, torch.float64, packed)
    assert worst(run(inputs, torch.float32, packed), expected) < 1e-3
    assert worst(run(inputs, torch.bfloat16, packed), expected) < 2e-2


def test_flash_attention_agrees_with_torchs_kernels() -> None:
    if attention._flash_varlen() is None:
        pytest.skip("needs a GPU with flash-attn installed")
    packed = batch()
    inputs = tensors(len(packed))
    expected = run(inputs, torch.float64, packed)
    assert worst(run(inputs, torch.bfloat16, packed), expected) < 2e-2


def test_a_policy_gives_the_log_probabilities_of_the_cpu() -> None:
    config = transformers.LlamaConfig(
        vocab_size=997,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    rows = [
        ([i % 997 for i in range(start, start + length)], [False] + [True] * (length - 1))
        for start, length in ((3, 40), (90, 300))
    ]
    exact = Policy.from_config(config, dtype="float64")
    on_gpu = Policy.from_config(config, dtype="float32")
    on_gpu.model.to("cuda")
    with torch.no_grad():
        expected = exact.forward_log_probs(pack(rows)).log_probs
        found = on_gpu.forward_log_probs(pack(rows)).log_probs.cpu().double()
        on_gpu.autocast = "bfloat16"
        rounded = on_gpu.forward_log_probs(pack(rows)).log_probs.cpu().double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rounded, expected, rtol=5e-2, atol=5e-2)
