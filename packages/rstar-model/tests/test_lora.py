"""Low-rank adapters: what trains, what engines are sent, what a checkpoint holds. Needs peft."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model.convert import CHECKPOINT_FILE, convert  # noqa: E402
from rstar_model.lora import LoraSettings  # noqa: E402
from rstar_model.packing import pack  # noqa: E402
from rstar_model.policy import Policy  # noqa: E402
from rstar_model.tensors import model_tensors  # noqa: E402
from rstar_model.weights import read_manifest, state_checksum, write_weights  # noqa: E402
from rstar_protos.errors import UserInputError  # noqa: E402

pytestmark = pytest.mark.heavy

SETTINGS = LoraSettings(rank=4, alpha=8.0)
BATCH = pack([([5, 6, 7, 8, 9], [False, False, True, True, True]), ([1, 2, 3], [False, True, True])])


def trained(folder: Path, settings: LoraSettings = SETTINGS, **options: object) -> Policy:
    """A policy with adapters after two steps of descent."""
    policy = Policy.load(folder, autocast=None, lora=settings, **options)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    for _ in range(2):
        (-policy.forward_log_probs(BATCH).log_probs.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return policy


def log_probs(policy: Policy):
    with torch.no_grad():
        return policy.forward_log_probs(BATCH).log_probs


def test_new_adapters_change_nothing_and_alone_require_gradients(model_folder: Path) -> None:
    plain, adapted = Policy.load(model_folder, autocast=None), Policy.load(model_folder, autocast=None, lora=SETTINGS)
    assert torch.equal(log_probs(plain), log_probs(adapted))
    wanted = {name for name, p in adapted.model.named_parameters() if p.requires_grad}
    assert wanted
    assert all(".lora_" in name for name in wanted)


def test_merged_weights_are_the_policy_under_the_models_own_names(model_folder: Path, tmp_path: Path) -> None:
    policy = trained(model_folder)
    base = Policy.load(model_folder, autocast=None)
    assert not torch.allclose(log_probs(policy), log_probs(base), atol=1e-3)
    manifest = write_weights(policy, tmp_path / "weights", 3)
    policy.save(tmp_path / "saved")
    for folder in ("weights", "saved"):
        loaded = Policy.load(tmp_path / folder, autocast=None)
        assert set(model_tensors(loaded.model)) == set(model_tensors(base.model))
        torch.testing.assert_close(log_probs(loaded), log_probs(policy), rtol=1e-5, atol=1e-5)
    assert read_manifest(tmp_path / "weights").checksum == manifest.checksum
    assert state_checksum(model_tensors(Policy.load(tmp_path / "weights").model)) == manifest.checksum


def test_the_state_holds_the_adapters_alone_and_comes_back(model_folder: Path) -> None:
    policy = trained(model_folder)
    state = policy.state_dict()
    assert all(".lora_" in name for name in state["model"])
    again = Policy.load(model_folder, autocast=None, lora=SETTINGS)
    again.load_state_dict(state)
    assert torch.equal(log_probs(again), log_probs(policy))


@pytest.mark.parametrize("other", [None, LoraSettings(rank=2, alpha=8.0)])
def test_a_state_of_other_adapters_is_refused(model_folder: Path, other: LoraSettings | None) -> None:
    state = trained(model_folder).state_dict()
    with pytest.raises(ValueError, match="adapters"):
        Policy.load(model_folder, lora=other).load_state_dict(state)


def test_a_checkpoint_of_adapters_is_converted_with_its_base(model_folder: Path, tmp_path: Path) -> None:
    policy = trained(model_folder)
    (tmp_path / "checkpoint").mkdir()
    torch.save({**policy.state_dict(), "optimizer": {}}, tmp_path / "checkpoint" / CHECKPOINT_FILE)
    manifest = convert(tmp_path / "checkpoint", tmp_path / "out", base=model_folder)
    assert manifest.checksum == state_checksum(model_tensors(policy.model))


def test_with_gradient_checkpointing_adapters_get_the_same_gradient(model_folder: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        policy = Policy.load(model_folder, autocast=None, lora=SETTINGS, gradient_checkpointing=checkpointing)
        policy.forward_log_probs(BATCH).log_probs.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.requires_grad]))
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-7)


def test_targets_that_no_layer_has_are_the_users_error(model_folder: Path) -> None:
    with pytest.raises(UserInputError, match="targets"):
        Policy.load(model_folder, lora=LoraSettings(targets=("no_such_layer",)))
