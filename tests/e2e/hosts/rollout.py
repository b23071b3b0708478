"""The rollout service over the scripted engine: the policy is a script, everything around it is real.

What the policy says is decided by the problem, the sample and the stage:

- turn 0: it computes the answer with the tool; in the first step of `rl-1` samples 0 and 1 take a while over it;
- turn 1: it declares the gold answer, or one that is wrong: even samples of ordinary problems are right, all of those
  that begin with `easy` are, and all of those in a stage called `solved`. With the first weights a problem that
  begins with `long` is never answered: some tokens of the answer are there when the rollout is stopped.

`RSTAR_E2E_GOLD` is a JSONL file with problems and answers. `RSTAR_E2E_GATES` is a folder that makes training rollouts
wait before each turn: see `Gates` in e2e_runs.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_protos.cli import run
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import ClientSecurity, open_channel, read_token, serve, serve_settings
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest, GenerationResult
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.service import RolloutServicer
from rstar_rollout.tool_executor import SandboxToolExecutor

GATES = os.environ.get("RSTAR_E2E_GATES")
_PROGRAM_SECONDS = 2.0
_POLL_SECONDS = 0.02
# A gate that nobody opens: the test is gone.
_GATE_SECONDS = 1800.0


class Policy:
    """Says what the module text describes."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat, gold: Mapping[str, str]) -> None:
        self._tokenizer, self._format, self._gold = tokenizer, chat_format, gold
        self._before_problem = chat_format.user_template.partition("{problem}")[0]

    def __call__(self, request: GenerationRequest) -> Sequence[int]:
        """Token ids of the next turn."""
        return self._tokenizer.encode(self._line(request) + self._format.end_of_turn)

    def problem(self, request: GenerationRequest) -> str:
        """Text of the problem."""
        text = self._tokenizer.decode(request.token_ids)
        return text.partition(self._before_problem)[2].partition(self._format.end_of_turn)[0]

    def _line(self, request: GenerationRequest) -> str:
        problem = self.problem(request)
        answer, sample = int(self._gold[problem]), request.noise.sample_index
        if request.noise.turn == 0:
            slow = sample < 2 and stage_and_step(request) == ("rl-1", "0")
            code = f"import time; time.sleep({_PROGRAM_SECONDS}); print({answer})" if slow else f"print({answer})"
            return f"I compute.</reason>\n{self._format.tool_call_text(PYTHON_TOOL.name, {'code': code, 'input': ''})}"
        right = sample % 2 == 0 or problem.startswith("easy") or stage_and_step(request)[0] == "solved"
        return f"Done.</reason><answer>\\boxed{{{answer if right else answer + 1}}}</answer>"


class GatedEngine(ScriptedEngine):
    """Waits at closed gates, in training only."""

    def __init__(self, policy: Policy) -> None:
        def never_ends(request: GenerationRequest) -> bool:
            long = request.noise.turn == 1 and policy.problem(request).startswith("long")
            return long and self._version == 1

        super().__init__(policy, deterministic=False, hold=asyncio.Event(), holds=never_ends, said_when_aborted=8)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """As the engine it is, but later."""
        stage, step = stage_and_step(request)
        if GATES is None or not step:
            return await super().generate(request)
        gate = Path(GATES) / f"{stage}-{step}-{request.noise.turn}"
        gate.mkdir(exist_ok=True)
        await asyncio.wait_for(opened(gate), _GATE_SECONDS)
        (gate / request.sequence_id.replace("/", "_")).touch()
        return await super().generate(request)


async def opened(gate: Path) -> None:
    """Returns when the test has opened a gate."""
    while not gate.with_suffix(".open").exists():  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(_POLL_SECONDS)


def stage_and_step(request: GenerationRequest) -> tuple[str, str]:
    """From the group's id in training, `stage/step/problem`; empty in an evaluation, whose ids begin with `eval`."""
    # Before the group's id stands the scope of the request.
    _, stage, step, *_ = request.sequence_id.split("/")
    return ("", "") if stage == "eval" else (stage, step)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--watch-parent", action="store_true")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sandbox")
    for name in ("tls-cert", "tls-key", "tls-client-ca", "token-file"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("ca", "cert", "key", "token-file"):
        parser.add_argument(f"--sandbox-{name}", type=Path)
    # The rest configures the engine that is not there.
    options, _ = parser.parse_known_args()
    settings = serve_settings(
        options.listen,
        options.tls_cert,
        options.tls_key,
        options.tls_client_ca,
        options.token_file,
        None,
        options.watch_parent,
    )
    token = read_token(options.sandbox_token_file, "--sandbox-token-file")
    security = ClientSecurity(options.sandbox_ca, options.sandbox_cert, options.sandbox_key, token)
    with open(os.environ["RSTAR_E2E_GOLD"], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    tokenizer, chat_format = load_tokenizer(options.model), ChatFormat.load("rstar")
    policy = Policy(tokenizer, chat_format, {row["problem"].strip(): row["answer"].replace(",", "") for row in rows})

    async def host() -> None:
        tools = SandboxToolExecutor(open_channel(options.sandbox, security))
        loop = AgentLoop(GatedEngine(policy), chat_format, tokenizer, tools)

        def register(server: object) -> None:
            rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server)

        await serve(settings, "rollout", register, [rollout_pb2.DESCRIPTOR])

    asyncio.run(host())


if __name__ == "__main__":
    run(main)
