from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model.packing import pack  # noqa: E402
from rstar_model.policy import Policy  # noqa: E402
from rstar_protos.errors import UserInputError  # noqa: E402

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = [
    transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    transformers.Qwen2Config(**SHAPE),
    transformers.Qwen3Config(**SHAPE, head_dim=8),
]

PROMPT = [5, 6, 7, 8, 9]
SEQUENCES = [
    # Policy and tool tokens take turns; one ends in a tool result, one is all prompt.
    ([*PROMPT, 1, 2, 3, 4], [False] * 5 + [True, True, False, True]),
    ([*PROMPT, 3, 3], [False] * 5 + [True, False]),
    ([*PROMPT, 2], [False] * 6),
    ([10, 11, 12], [False, True, True]),
]


def losses(policy: Policy, batch, **settings):
    """Log-probabilities of policy tokens, and the gradient of a sum that weighs each differently."""
    policy.model.zero_grad()
    output = policy.forward_log_probs(batch, **settings)
    values = output.log_probs[batch.loss_mask]
    (values * torch.arange(1, len(values) + 1)).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    return values.detach(), gradient


def reference(policy: Policy, temperature: float):
    """The same from one unpacked forward pass a sequence, through the model's own head."""
    policy.model.zero_grad()
    parts = []
    for ids, mask in SEQUENCES:
        logits = policy.model(torch.tensor([ids])).logits[0, :-1] / temperature
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)
        parts.append(chosen[torch.tensor(mask[1:])])
    values = torch.cat(parts)
    (values * torch.arange(1, len(values) + 1)).sum().backward()
    return values.detach(), torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
@pytest.mark.parametrize("chunk", [2, 1024])
def test_packed_values_and_gradients_equal_unpacked_ones(config, chunk: int) -> None:
    policy = Policy.from_config(config, dtype="float64")
    values, gradient = losses(policy, pack(SEQUENCES), temperature=0.7, chunk_tokens=chunk)
    expected, expected_gradient = reference(policy, 0.7)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    assert (gradient - expected_gradient).norm() <= 1e-10 * expected_gradient.norm()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_a_shared_prefix_changes_rounding_only(config) -> None:
    policy = Policy.from_config(config, dtype="float64")
    values, gradient = losses(policy, pack(SEQUENCES, share_prefix=True))
    expected, expected_gradient = losses(policy, pack(SEQUENCES))
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)
    # The models' norms round to float32 whatever the dtype, and here they round sums over the group.
    assert (gradient - expected_gradient).norm() <= 1e-6 * expected_gradient.norm()


def test_micro_batches_add_up_to_the_whole() -> None:
    policy = Policy.from_config(CONFIGS[0], dtype="float64")
    policy.forward_log_probs(pack(SEQUENCES)).log_probs.sum().backward()
    whole = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    policy.model.zero_grad()
    for sequence in SEQUENCES:
        policy.forward_log_probs(pack([sequence])).log_probs.sum().backward()
    parts = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    assert (parts - whole).norm() <= 1e-10 * whole.norm()


def test_tokens_without_loss_have_zero_and_no_gradient() -> None:
    """Changing what a masked token would contribute changes nothing: only its effect as context counts."""
    policy = Policy.from_config(CONFIGS[0], dtype="float64")
    batch = pack(SEQUENCES)
    output = policy.forward_log_probs(batch)
    assert not output.log_probs[~batch.loss_mask].any()
    trailing = SEQUENCES[1]  # ends in a tool token, which nothing after it sees
    changed = ([*trailing[0][:-1], 44], trailing[1])
    _, before = losses(policy, pack([trailing]))
    _, after = losses(policy, pack([changed]))
    embedding = policy.model.get_input_embeddings().weight.shape.numel()
    assert torch.equal(before[embedding:], after[embedding:])


def test_all_positions_can_be_asked_for() -> None:
    policy = Policy.from_config(CONFIGS[0])
    batch = pack(SEQUENCES)
    values = policy.forward_log_probs(batch, only_mask=False).log_probs
    assert torch.equal(values == 0, batch.previous < 0)


def test_the_same_input_gives_bit_equal_results() -> None:
    policy = Policy.from_config(CONFIGS[0], autocast="bfloat16")
    batch = pack(SEQUENCES, share_prefix=True)
    first, second = losses(policy, batch), losses(policy, batch)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_gradient_checkpointing_computes_layers_again_and_changes_nothing(tmp_path: Path) -> None:
    Policy.from_config(CONFIGS[0]).save(tmp_path)
    batch = pack(SEQUENCES)
    runs = {}
    for checkpointing in (False, True):
        policy = Policy.load(tmp_path, autocast=None, gradient_checkpointing=checkpointing)
        calls: list[None] = []
        # Not the last part of the layer: recomputing stops as soon as all that is needed is there.
        attention = policy.model.model.layers[0].self_attn
        attention.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        runs[checkpointing] = (losses(policy, batch), len(calls))
    (plain, once), (again, twice) = runs[False], runs[True]
    assert (once, twice) == (1, 2)
    assert torch.equal(plain[0], again[0])
    assert torch.equal(plain[1], again[1])


def test_autocast_keeps_float32_master_weights_and_gradients() -> None:
    policy = Policy.from_config(CONFIGS[0], autocast="bfloat16")
    exact = Policy.from_config(CONFIGS[0])
    batch = pack(SEQUENCES)
    values, gradient = losses(policy, batch)
    expected, _ = losses(exact, batch)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=0.02, atol=0.02)


def test_entropy_is_that_of_the_distribution_the_token_was_drawn_from() -> None:
    policy = Policy.from_config(CONFIGS[0], dtype="float64")
    ids, mask = SEQUENCES[3]
    entropy = policy.forward_log_probs(pack([(ids, mask)]), temperature=2.0, with_entropy=True).entropy
    logits = torch.log_softmax(policy.model(torch.tensor([ids])).logits[0] / 2.0, -1)
    expected = -(logits.exp() * logits).sum(-1)[:-1]
    torch.testing.assert_close(entropy[1:], expected, rtol=1e-10, atol=1e-10)
    assert entropy[0] == 0


def test_a_saved_policy_loads_again_with_its_tokenizer(tmp_path: Path, tokenizer_folder: Path) -> None:
    policy = Policy.from_config(CONFIGS[0])
    policy.source = tokenizer_folder
    policy.save(tmp_path / "saved")
    loaded = Policy.load(tmp_path / "saved", autocast=None)
    batch = pack(SEQUENCES)
    assert torch.equal(loaded.forward_log_probs(batch).log_probs, policy.forward_log_probs(batch).log_probs)
    assert (tmp_path / "saved" / "tokenizer.json").is_file()


def test_a_folder_without_model_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"config\.json"):
        Policy.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserInputError):
        Policy.load(tmp_path)


@pytest.mark.parametrize("wrong", [{"dtype": "float8"}, {"autocast": "int4"}])
def test_an_unknown_dtype_is_the_users_error(wrong: dict[str, str]) -> None:
    with pytest.raises(UserInputError, match=next(iter(wrong))):
        Policy.from_config(CONFIGS[0], **wrong)
