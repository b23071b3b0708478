"""The pipeline from end to end: real processes, real services, and a policy that is scripted or real.

Light tests script the policy (hosts/rollout.py) and train a tiny random Llama on what it says; everything else is as
in any run. Heavy ones use a real language model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent / "support"))

from e2e_processes import kill_marked
from e2e_runs import SCRIPTED_TRAINER, Gates, Run, Workplace, write_rows

PROBLEMS = [{"id": f"p{n}", "problem": f"What is {n} times 7?", "answer": str(7 * n)} for n in range(1, 9)]
HELDOUT = [{"id": f"h{n}", "problem": f"What is {n} times 11?", "answer": str(11 * n)} for n in range(1, 3)]
_CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WIDTH, _INNER, _KEY = 32, 64, 16


@pytest.fixture(scope="session")
def make_workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Workplace]]:
    """Makes folders for runs; whatever was started in one and is still there at the end is killed."""
    made: list[Workplace] = []

    def make() -> Workplace:
        folder = tmp_path_factory.mktemp("runs")
        made.append(Workplace(folder, str(folder / "mark")))
        return made[-1]

    yield make
    for workplace in made:
        kill_marked(workplace.mark)


@pytest.fixture(scope="module")
def make_real(make_workplace: Callable[[], Workplace]) -> Iterator[Callable[[], Workplace]]:
    """Makes folders for runs with a real policy; they hold gigabytes, and go with the module that asked for them."""
    made: list[Workplace] = []

    def make() -> Workplace:
        made.append(make_workplace())
        return made[-1]

    yield make
    for workplace in made:
        kill_marked(workplace.mark)
        shutil.rmtree(workplace.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def make_light(make_workplace: Callable[[], Workplace], tiny_policy: Path) -> Callable[[], Workplace]:
    """Makes folders with all that the recipe `light` needs."""

    def make() -> Workplace:
        workplace = make_workplace()
        (workplace.folder / "tiny").symlink_to(tiny_policy)
        for name, rows in {"train": PROBLEMS, "heldout": HELDOUT, "gold": PROBLEMS + HELDOUT}.items():
            write_rows(workplace.folder / f"{name}.jsonl", rows)
        workplace.environment["RSTAR_E2E_GOLD"] = str(workplace.folder / "gold.jsonl")
        return workplace

    return make


@pytest.fixture
def light(make_light: Callable[[], Workplace]) -> Iterator[Workplace]:
    """A folder with all that the recipe `light` needs."""
    made = make_light()
    yield made
    kill_marked(made.mark)


@pytest.fixture
def gates(light: Workplace) -> Gates:
    """Gates for the scripted policy of the runs in `light`."""
    return light.gates()


@pytest.fixture(scope="session")
def reference(make_light: Callable[[], Workplace]) -> tuple[Workplace, Run]:
    """A run of the recipe `light` that nothing disturbed."""
    workplace = make_light()
    return workplace, workplace.start("reference", "light", trainer=SCRIPTED_TRAINER).succeed()


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer with random weights and one token per byte, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("tiny-policy")
    vocabulary = {
        letter: number for number, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_CONTROL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    _write_json(
        folder / "tokenizer_config.json", {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    )
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": size,
            "hidden_size": _WIDTH,
            "intermediate_size": _INNER,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": _WIDTH // 4,
            "max_position_embeddings": 4096,
            "bos_token_id": None,
            "eos_token_id": size - 1,
            "tie_word_embeddings": True,
            "dtype": "float32",
        },
    )
    shapes = {
        "embed_tokens": (size, _WIDTH),
        "layers.0.self_attn.q_proj": (_WIDTH, _WIDTH),
        "layers.0.self_attn.k_proj": (_KEY, _WIDTH),
        "layers.0.self_attn.v_proj": (_KEY, _WIDTH),
        "layers.0.self_attn.o_proj": (_WIDTH, _WIDTH),
        "layers.0.mlp.gate_proj": (_INNER, _WIDTH),
        "layers.0.mlp.up_proj": (_INNER, _WIDTH),
        "layers.0.mlp.down_proj": (_WIDTH, _INNER),
    }
    random = np.random.default_rng(0)
    tensors = {f"model.{name}.weight": random.normal(0, 0.2, shape) for name, shape in shapes.items()}
    norms = ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")
    tensors.update({f"model.{name}.weight": np.ones(_WIDTH) for name in norms})
    arrays = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, server and client certificates with keys, and a token; made by the openssl command."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "token").write_text("token-of-the-e2e-tests\n")
    extensions = "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n"
    (folder / "extensions").write_text(extensions)
    _openssl(folder, "req", "-x509", *_new_key("ca"), "-days", "2", "-out", "ca.pem")
    signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions")
    for name in ("server", "client"):
        _openssl(folder, "req", "-new", *_new_key(name), "-out", f"{name}.csr")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, from the cache once it has been fetched."""
    from rstar_model.fetch import fetch

    return fetch("smollm2-135m").path


@pytest.fixture(scope="session")
def taught(make_workplace: Callable[[], Workplace], smollm2: Path) -> Path:
    """SmolLM2 after the pipeline's own SFT: it calls the tool, and is right now and then. A Hugging Face folder."""
    settings = {"model.source": smollm2, "stages": []}
    folder = make_workplace().start("taught", "real", settings).succeed().folder
    shutil.rmtree(folder / "checkpoints")
    return folder / "policy"


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def _new_key(name: str) -> tuple[str, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    return (*curve, "-nodes", "-keyout", f"{name}.key", "-subj", f"/CN={name}")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"openssl {' '.join(arguments)}: {done.stderr}")
