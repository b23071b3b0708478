"""A whole evaluation over real services: rollouts of a scripted policy, tools in a sandbox, a real verifier.

Only the policy is scripted: it adds the two numbers of the problem with the tool, except where the problem's id says
otherwise. Everything crosses gRPC; sandbox and verifier are child processes.
"""

import json
import re
from dataclasses import replace

import pytest
import tokenizers
from rich.console import Console

from rstar_eval.description import SAMPLES_FILE, Description, load_report
from rstar_eval.gold_check import UnusableGoldError
from rstar_eval.problems import EvalProblem
from rstar_eval.run import EvaluationRun
from rstar_eval.services import NO_SANDBOX, EvalServices, ServiceChoice
from rstar_eval.settings import EvalSettings
from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import ServeSettings, open_channel, start_server
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.service import RolloutServicer
from rstar_rollout.tool_executor import SandboxToolExecutor

PROBLEMS = (
    EvalProblem("tool-1", "Add 20 and 22.", "42", ("plain",)),
    EvalProblem("tool-2", "Add 1 and 2.", "3", ("plain",)),
    EvalProblem("wrong", "Add 3 and 4.", "7", ("hard",)),
    EvalProblem("failing", "Add 5 and 6.", "11", ("hard",)),
    EvalProblem("endless", "Add 7 and 8.", "15", ("hard",)),
)
SETTINGS = EvalSettings(temperature=1.0, max_turns=4, max_response_tokens=600)


class Policy:
    """The scripted policy behind a real rollout service; counts the turns it was asked for."""

    def __init__(self, sandbox):
        self._format = ChatFormat.load("rstar")
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        built = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(alphabet)}, []))
        built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        built.decoder = tokenizers.decoders.ByteLevel()
        built.add_special_tokens(["<|im_start|>", self._format.end_of_turn])
        self._tokenizer = Tokenizer(built.to_str(), eos_tokens=[self._format.end_of_turn])
        self._sandbox = sandbox
        self.turns = 0

    async def serve(self, folder):
        channel = open_channel(self._sandbox)
        engine = ScriptedEngine(self._say, deterministic=False)
        loop = AgentLoop(engine, self._format, self._tokenizer, SandboxToolExecutor(channel))
        server = await start_server(
            ServeSettings(listen=f"unix:{folder}/rollout.sock"),
            lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server),
            [rollout_pb2.DESCRIPTOR],
        )
        return server, channel

    def _say(self, request):
        self.turns += 1
        return self._tokenizer.encode(self._line(request) + self._format.end_of_turn)

    def _line(self, request):
        text = self._tokenizer.decode(request.token_ids)
        first, second = re.findall(r"Add (\d+) and (\d+)", text)[-1]
        printed = re.findall(r"<tool_response>\s*(\d+)", text)
        if request.noise.problem_id == "endless":
            return "thinking " * 500
        if request.noise.problem_id == "wrong" or (request.noise.turn > 0 and not printed):
            return "</reason><answer>\\boxed{0}</answer>"
        if printed:
            return f"</reason><answer>\\boxed{{{printed[-1]}}}</answer>"
        if PYTHON_TOOL.name not in text:
            return "I have no tools.</reason><answer>\\boxed{unknown}</answer>"
        code = "1/0" if request.noise.problem_id == "failing" else f"print({first}+{second})"
        call = json.dumps({"name": PYTHON_TOOL.name, "arguments": {"code": code, "input": ""}})
        return f"</reason><tool_call>{call}</tool_call>"


@pytest.fixture
async def policy(embedded, tmp_path):
    """A running policy and the choice of services that evaluates it."""
    scripted = Policy(embedded["sandbox"])
    server, channel = await scripted.serve(tmp_path)
    scripted.choice = ServiceChoice(rollout=server.listening, reward=embedded["reward"])
    yield scripted
    await server.stop(0)
    await channel.close()


async def run(policy, folder, settings=SETTINGS, problems=PROBLEMS):
    description = Description("scripted", "scripted policy", settings, problems)
    return await EvaluationRun(description, policy.choice, folder).run(Console(quiet=True))


async def test_scores_and_shares_of_a_real_run(policy, tmp_path):
    report = await run(policy, tmp_path / "out")
    found = report.overall
    statuses = {row.problem_id: row.status for row in report.rows}
    assert statuses == {
        "tool-1": "correct",
        "tool-2": "correct",
        "wrong": "wrong",
        "failing": "wrong",
        "endless": "no_answer",
    }
    assert (report.pass_at_1.mean, found.scored, found.excluded) == (0.4, 5, 0)
    assert (found.tool_call_share, found.tool_error_share) == (3 / 5, 1 / 3)
    assert (found.truncation_share, found.pass_at_1_finished.mean) == (1 / 5, 0.5)
    assert report.by_tag["plain"].pass_at_1.mean == 1
    assert report.complete


async def test_run_leaves_a_folder_that_reports_again(policy, tmp_path):
    report = await run(policy, tmp_path / "out")
    assert load_report(tmp_path / "out") == report
    assert json.loads((tmp_path / "out" / "report.json").read_text())["pass_at_1"] == 0.4


async def test_continued_run_generates_only_what_is_missing(policy, tmp_path):
    await run(policy, tmp_path / "out", problems=PROBLEMS[:2])
    before = policy.turns
    report = await run(policy, tmp_path / "out", problems=PROBLEMS[:3])
    assert policy.turns == before + 1
    assert report.overall.scored == 3


async def test_another_sampling_in_the_same_folder_is_refused(policy, tmp_path):
    await run(policy, tmp_path / "out", problems=PROBLEMS[:1])
    with pytest.raises(UserInputError, match="seed"):
        await run(policy, tmp_path / "out", replace(SETTINGS, seed=5), PROBLEMS[:1])
    samples = (tmp_path / "out" / SAMPLES_FILE).read_text().splitlines()
    assert len(samples) == 1


async def test_gold_answer_that_cannot_be_read_is_refused_before_anything_is_sampled(policy, tmp_path):
    unusable = EvalProblem("unusable", "Add 9 and 9.", "((", where="problems.jsonl, line 6")
    with pytest.raises(UnusableGoldError, match=r"problems.jsonl, line 6, id unusable: '\(\('"):
        await run(policy, tmp_path / "out", problems=(*PROBLEMS, unusable))
    assert policy.turns == 0
    assert not (tmp_path / "out" / SAMPLES_FILE).exists()


async def test_policy_without_its_tool_scores_lower(policy, tmp_path):
    report = await run(policy, tmp_path / "out", replace(SETTINGS, tools_enabled=False), PROBLEMS[:2])
    assert (report.pass_at_1.mean, report.overall.tool_call_share) == (0, 0)


async def test_absent_rollout_service_is_an_infrastructure_fault(embedded, tmp_path, monkeypatch):
    monkeypatch.setattr("rstar_eval.run.PATIENCE_SECONDS", 0.2)
    choice = ServiceChoice(rollout=f"unix:{tmp_path}/absent.sock", reward=embedded["reward"])
    with pytest.raises(ServiceUnavailableError, match="no answer within"):
        await EvaluationRun(Description("x", "", SETTINGS, PROBLEMS), choice, tmp_path / "out").run(Console(quiet=True))


async def test_service_that_cannot_start_passes_on_its_reason_and_leaves_no_process(tmp_path):
    choice = ServiceChoice(sandbox=NO_SANDBOX, rollout_arguments=("--model", str(tmp_path / "absent")))
    with pytest.raises(UserInputError, match="rollout service"):
        async with EvalServices(choice, tmp_path / "logs"):
            pytest.fail("it started")


def test_sandbox_beside_a_running_rollout_service_is_refused():
    with pytest.raises(UserInputError, match="--sandbox"):
        ServiceChoice(sandbox="unix:/x", rollout="unix:/y")
