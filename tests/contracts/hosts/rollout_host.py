"""The rollout service over the scripted engine, so that its contract can be tested without a language model.

Agent loop, chat format, tool calls and servicer are the real ones; tools run in the sandbox service given by
`--sandbox`. What the policy says is decided by the first word of the problem's id:

- `answer`: declares sample index + 40 at once;
- `tool`: computes 6*7 with the tool, then declares it;
- `slow`: calls a tool that takes a minute;
- `long`: writes until its tokens run out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import serve_options
import tokenizers

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_protos.cli import run
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import open_channel, serve
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.service import RolloutServicer
from rstar_rollout.tool_executor import SandboxToolExecutor


def byte_tokenizer(chat_format: ChatFormat) -> Tokenizer:
    """One token per byte, and the control tokens of ChatML."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(alphabet)}
    built = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = tokenizers.decoders.ByteLevel()
    built.add_special_tokens(["<|im_start|>", chat_format.end_of_turn])
    return Tokenizer(built.to_str(), eos_tokens=[chat_format.end_of_turn])


def tool_call(code: str) -> str:
    """A turn that calls the Python tool."""
    call = json.dumps({"name": PYTHON_TOOL.name, "arguments": {"code": code, "input": ""}})
    return f"I compute.</reason>\n<tool_call>{call}</tool_call>"


def line(request: GenerationRequest) -> str:
    """What the policy says in this turn."""
    noise = request.noise
    kind = noise.problem_id.partition(" ")[0]
    if kind == "answer":
        return f"Easy.</reason><answer>\\boxed{{{noise.sample_index + 40}}}</answer>"
    if kind == "tool":
        return tool_call("print(6*7)") if noise.turn == 0 else "Done.</reason><answer>\\boxed{42}</answer>"
    if kind == "slow":
        return tool_call("import time; time.sleep(60)")
    return "on and on " * 1000


def main() -> None:
    """Entry point."""
    settings, options = serve_options.parse("--sandbox")
    chat_format = ChatFormat.load("rstar")
    tokenizer = byte_tokenizer(chat_format)

    def script(request: GenerationRequest) -> Sequence[int]:
        return tokenizer.encode(line(request) + chat_format.end_of_turn)

    async def host() -> None:
        tools = SandboxToolExecutor(open_channel(options.sandbox)) if options.sandbox else None
        loop = AgentLoop(ScriptedEngine(script, deterministic=False), chat_format, tokenizer, tools)

        def register(server: object) -> None:
            rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server)

        await serve(settings, "rollout", register, [rollout_pb2.DESCRIPTOR])

    asyncio.run(host())


if __name__ == "__main__":
    run(main)
