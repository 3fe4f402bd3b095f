"""The commands in the fenced blocks of README, documents and examples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
)
#: A block begins with one of these words if it has commands; after `sudo`, variables and comments.
PROGRAMS = (
    *(
        "sentinel",
        "python",
        "python3",
        "pip",
        "uv",
        "pipx",
        "make",
        "curl",
        "docker",
        "kubectl",
        "helm",
    ),
    *(
        "sudo",
        "install",
        "systemctl",
        "journalctl",
        "nvidia-smi",
        "taskset",
        "clush",
        "srun",
        "sbatch",
    ),
    *("ansible-playbook", "scontrol", "set", "echo", "for", "mkdir", "export", "cat"),
)


@dataclass(frozen=True)
class Command:
    """One command of a document."""

    document: Path
    text: str

    def __str__(self) -> str:
        """Return the document and the command."""
        return f"{self.document.relative_to(ROOT)}: {self.text}"


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    document: Path
    language: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> list[Command]:
        """The commands of the block: after prompts, or else all of its lines."""
        joined = "\n".join(self.lines).replace("\\\n", " ").splitlines()
        lines = [line.strip() for line in joined if line.strip()]
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [Command(self.document, plain) for line in lines if (plain := without_comment(line))]

    @property
    def has_commands(self) -> bool:
        """Whether its first line is a command."""
        commands = self.commands
        if not commands:
            return False
        first = re.sub(r"^(?:\w+=(?!\$\()\S* +)*", "", commands[0].text)
        word = first.split()[0]
        program = word.rpartition("/")[2]
        return program in PROGRAMS or bool(re.match(r"\w+=\$", first)) or word.startswith("deploy/")


def without_comment(line: str) -> str:
    """Remove a comment from the end of a line."""
    return re.sub(r"(?:^|\s+)# .*$", "", line).strip()


def blocks() -> list[Block]:
    """Collect every block without a language or with that of a shell."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for language, body in re.findall(
            r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL
        ):
            if language in {"", "console", "sh", "bash"}:
                found.append(Block(document, language, tuple(body.splitlines())))
    return found


def commands() -> list[Command]:
    """Collect every command, in the order of the documents."""
    return [command for block in blocks() if block.has_commands for command in block.commands]


def inline_commands() -> list[Command]:
    """Collect the commands of sentinel within tables and sentences; no test runs them."""
    found = []
    for document in DOCUMENTS:
        text = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        spans = re.findall(r"`((?:sudo |python -m )?sentinel [^`]+)`", text)
        found += [Command(document, " ".join(span.split())) for span in spans]
    return list(dict.fromkeys(found))


# --- what runs them --------------------------------------------------------------------------

#: The test that runs a command as it is in the document, on simulated GPUs.
HERE = "integration/cli/test_documented_commands.py::test_it_runs_as_documented"


@dataclass(frozen=True)
class Because:
    """Why no test runs a command."""

    reason: str


#: Fenced blocks that are no commands, by their first line, and what they are.
NOT_COMMANDS = {
    "event: changes": "a reply",
    "clients: command line, Python, web page, Prometheus": "a drawing",
    "judge ────────▶ seam ◀──────── occupier": "a drawing",
    "observe ──▶ react ──▶ kill ──▶ conclude ──▶ act ──▶ publish": "a drawing",
    "idle, seen twice, --rearm is over": "a drawing",
    "after               25 ms              45 ms       75 ms                1 s"
    "                    3 s": "a drawing",
    "#!/bin/sh": "a program for notify.command, as test_notifications.py has one",
    "PreemptType=preempt/partition_prio": "lines of slurm.conf, in test_slurm.py",
    "gpu-sentry: memory.remap_failed on GPU 3 (GPU-952937bc-67d8-5168-8d5a-083882c8d660)": (
        "the reason of a drain"
    ),
    "[Service]": "lines of a unit",
    "* || check_cmd_output -t 20 -m '!/^GPU CRITICAL/' -M '%L'"
    " sh -c '/usr/local/bin/sentinel check --nagios --expect /etc/sentinel/node.toml; exit 0'": (
        "a line of nhc.conf, in test_accept_a_node.py"
    ),
}

_SYSTEMD = Because("It changes the services of a host; systemd-analyze checks the unit.")
_INDEX = Because("The project is on no package index yet; a wheel is installed instead.")
_CLUSTER = Because("It needs a cluster; docs/guides/kubernetes.md says what was tried instead.")
_MEASURED = Because("It ran on H200s for the figures below it, which take minutes or hours.")
_LIGHT = "integration/deploy/test_light_installation.py::"
_FLEET = "integration/fleet/test_slurm_fleet.py::"
_BURNIN = "integration/burnin/test_burnin_command.py::"
_DAEMON_BURNIN = "integration/burnin/test_daemon_burnin.py::"

#: What runs a command, by a pattern of the whole command; the first that fits counts.
PROOFS: dict[str, str | Because] = {
    # Installation.
    r"python3 -m venv \.venv && .*": "integration/deploy/test_makefile.py"
    "::test_the_demo_installs_no_tools_of_developers_and_shows_progress",
    r"python -m pip install --constraint constraints\.txt .*": _LIGHT
    + "test_what_needs_no_daemon_works_without_torch",
    r"python3 -m venv /opt/sentinel": Because("It writes to /opt; tests make their own."),
    r"/opt/sentinel/bin/python -m pip (?:un)?install .*": _INDEX,
    r"sudo /opt/sentinel/bin/python -m pip install --upgrade .*": _INDEX,
    r"/opt/sentinel/bin/sentinel doctor": Because(
        "It is `sentinel doctor` of an installation in /opt, which the tests do not make."
    ),
    r"python -c 'from importlib.*": _LIGHT + "test_the_torch_of_the_site_is_kept",
    r"python -m pip install --constraint torch\.txt .*": _LIGHT
    + "test_the_torch_of_the_site_is_kept",
    r"uv pip install --constraint torch\.txt .*": _LIGHT + "test_the_torch_of_the_site_is_kept",
    r"PIPX_DEFAULT_BACKEND=pip pipx install .*": _LIGHT
    + "test_pipx_uses_the_torch_outside_its_environment",
    r"python -m pip install (?:--no-deps .*|'nvidia-ml-py.*)": _LIGHT
    + "test_the_recipes_without_torch_install_none",
    r"echo 'torch ; .*": _LIGHT + "test_the_recipes_without_torch_install_none",
    r"uv pip install --override .*": _LIGHT + "test_the_recipes_without_torch_install_none",
    r"sudo (?:/opt/sentinel/bin/)?sentinel install-unit": _SYSTEMD,
    r"(?:sudo )?systemctl .*": _SYSTEMD,
    r"sudo rm -f /etc/systemd/system/sentinel\.service && .*": _SYSTEMD,
    r"sudo cp -a /var/lib/sentinel .*": Because("It copies the state of a real installation."),
    r"journalctl .*": Because("It needs the journal of a host; test_systemd.py has what is sent."),
    r"pip install \./examples/sentinel-check-site": "integration/burnin/test_own_checks.py"
    "::test_the_installed_example_is_found_by_the_command",
    r"pip install \./examples/sentinel-driver-amdgpu": (
        "integration/probe/test_example_driver.py"
        "::test_the_installed_example_is_selected_by_its_name"
    ),
    r"python -m pip install \.|sentinel run --workload traffic:.*": (
        "integration/stressor/test_example_workload.py"
        "::test_the_package_of_the_document_runs_by_its_name"
    ),
    r"pip install \./examples/sentinel-workload-fft": (
        "integration/stressor/test_example_workload.py::test_the_installed_example_runs_by_its_name"
    ),
    r"sentinel health --require warn": "integration/cli/test_health.py"
    "::test_a_script_can_require_that_every_gpu_of_the_host_has_passed",
    r"sentinel health(?: --acknowledge 3 .*)?": "integration/cli/test_health.py"
    "::test_without_a_daemon_the_file_has_who_acknowledged_what_when_and_why",
    # Development.
    r"make demo": "integration/deploy/test_makefile.py"
    "::test_the_demo_installs_no_tools_of_developers_and_shows_progress",
    r"make docs": "unit/test_documents.py::test_generated_parts_are_up_to_date",
    r"make site": "integration/deploy/test_site.py"
    "::test_everything_that_a_page_links_to_on_the_site_is_there",
    r"make (?:test|test-all|soak|check)": Because("It runs the tests or the checks themselves."),
    r"make dist": Because("It downloads build and twine; test_wheel.py builds the same files."),
    r"python -m benchmarks\.soak --real .*": _MEASURED,
    r"python -m benchmarks\.soak.*": "integration/benchmarks/test_soak.py"
    "::test_nothing_grows_in_a_short_soak",
    r"python -m benchmarks\.random_jobs.*": "integration/benchmarks/test_random_jobs.py"
    "::test_random_jobs_under_hostile_clients_break_no_invariant",
    r"python -m benchmarks\.\w+.*": Because(
        "It takes minutes and shows nothing on a busy host; the tests of benchmarks have its parts."
    ),
    # The acceptance of a node.
    r"sentinel (?:--version|(?:doctor|check|burnin) .*)(?: \|\| exit\b.*|\"\$2\")"
    r"|code=\$\?|test \$code .*": "integration/test_accept_a_node.py"
    "::test_a_run_that_was_cut_short_goes_on",
    r"sentinel health --expect-gpus .*": "integration/test_accept_a_node.py"
    "::test_an_earlier_fault_refuses_a_node_that_passes_now",
    r"scontrol (?:create|update) .*|sentinel fleet burnin --nodelist node7 .*": _FLEET
    + "test_a_drained_node_has_jobs_again_once_it_has_passed_in_a_reservation",
    # The daemon and its API.
    r"sentinel start(?: --metrics 8766| --tcp 127\.0\.0\.1:8765)?": HERE,
    r"sentinel --once": HERE,
    r"sentinel --config site\.toml": HERE,
    r"python -m sentinel --simulate 2 --rearm 2s": HERE,
    r"python -m sentinel demo job .*": HERE,
    r"S=\$XDG_RUNTIME_DIR/sentinel/sentinel\.sock": HERE,
    r"curl -s.* --unix-socket .*": HERE,
    r"curl -s -H \"Authorization: .*": HERE,
    r"curl -s http://127\.0\.0\.1:8766/metrics .*": HERE,
    r"sentinel (?:status|history)\b(?! && ).*": HERE,
    r"CUDA_VISIBLE_DEVICES=\$\(sentinel free .*": "integration/cli/test_free.py"
    "::test_a_job_gets_what_it_prints",
    r"sentinel (?:pause|resume|reserve|exec|allocate)\b.*": HERE,
    r"sentinel top": "integration/cli/test_top.py"
    "::test_top_shows_every_gpu_and_its_keys_pause_resume_and_reserve",
    r"sentinel stop": "integration/cli/test_start.py"
    "::test_three_shells_may_start_and_stop_the_daemon_at_the_same_time",
    r"sentinel logs --lines 20": HERE,
    r"sentinel (?:set|session)\b.*": HERE,
    r"sentinel status && sentinel doctor": HERE,
    # Burn-in.
    r"for n in .* do sentinel burnin .*": _MEASURED,
    r"sentinel burnin --simulate 2 --level screen": Because(
        "It takes a minute of verified work; test_a_whole_plan_ends_with_a_pass_and_a_report has"
        " a short plan."
    ),
    r"sentinel burnin(?: --expect-gpus 8 --report DIR)?": _BURNIN
    + "test_a_whole_plan_ends_with_a_pass_and_a_report",
    r"sentinel burnin --level .* --report \w+": _MEASURED,
    r"sentinel burnin --plan .*": _DAEMON_BURNIN
    + "test_the_daemon_runs_a_plan_and_occupies_its_gpus_again",
    r"sentinel burnin --expect node.toml --strict --report DIR": "integration/cli/"
    "test_expected_nodes.py::test_a_burn_in_keeps_what_it_expected",
    r"sentinel burnin --resume DIR": _DAEMON_BURNIN
    + "test_the_daemon_goes_on_with_a_run_that_was_cut",
    r"sentinel burnin (?:status|attach|cancel)": _DAEMON_BURNIN
    + "test_a_run_survives_its_terminal_and_is_attached_and_cancelled",
    r"sentinel report DIR --(?:sign|verify) .*": "unit/burnin/test_manifest.py"
    "::test_a_signature_is_of_an_allowed_signer_for_this_purpose_and_now",
    r"sentinel report.*": HERE,
    # Without a daemon.
    r"sentinel workloads selftest --simulate 1 .*": "integration/burnin/test_trial.py"
    "::test_exactly_the_injected_faults_are_found",
    r"sentinel (?:--help|demo|workloads|check|doctor|config)\b.*": HERE,
    r"sentinel run --monitor --driver amdgpu|sentinel run --once --driver amdgpu:.*": (
        "integration/probe/test_example_driver.py"
        "::test_the_installed_example_is_selected_by_its_name"
    ),
    r"sentinel run (?:--simulate 2 )?--workload fft.*": (
        "integration/stressor/test_example_workload.py::test_the_installed_example_runs_by_its_name"
    ),
    r"python -m sentinel --simulate 1 --workload retention.*": HERE,
    r"python -m sentinel workloads try .*": HERE,
    # Recipes.
    r"set -e|gpus=.*|id=.*|trap .*|export CUDA_.*|python (?:prepare|train)\.py": (
        "integration/cli/test_documented_commands.py::test_a_script_of_the_recipes_runs"
    ),
    r"(?:install -D -t|chmod 644) /etc/slurm/.*": Because(
        "It writes to /etc; test_slurm.py has the scripts."
    ),
    r"nvidia-smi --gpu-reset .*": Because("It resets a GPU, which only an operator may do."),
    # Fleets. The tests have short plans and simulated GPUs.
    r"sentinel fleet burnin (?:--partition gpu .*|--nodes 16 .*)": _FLEET
    + "test_every_node_burns_itself_in_so_many_at_a_time",
    r"sentinel fleet burnin .* --drain .*|sentinel fleet undrain .*": _FLEET
    + "test_a_failing_node_is_drained_and_only_this_is_taken_back",
    r"sentinel fleet burnin --engine clush .*": "integration/fleet/test_clush_fleet.py"
    "::test_every_node_reports_and_one_that_cannot_be_reached_is_missing",
    r"sentinel fleet report --watch .*": _FLEET
    + "test_a_run_survives_its_controller_and_its_terminal",
    r"sentinel fleet (?:cancel|resume) .*": _FLEET
    + "test_a_cancelled_run_has_the_reports_of_what_was_done_and_goes_on",
    r"sentinel fleet report COLLECTED .*": "unit/fleet/test_acceptance.py"
    "::test_of_eight_nodes_the_seven_bad_ones_are_named_and_the_eighth_has_passed",
    r"sentinel fleet report DIR --expect-nodes .*": "unit/fleet/test_acceptance.py"
    "::test_of_nodes_by_name_each_without_a_report_is_missing",
    r"sentinel fleet report .*": "unit/cli/test_fleet_report.py"
    "::test_the_exit_code_and_the_first_line_are_the_verdict",
    r"ansible-playbook .*": "integration/deploy/test_ansible.py"
    "::test_the_role_installs_everything_and_is_idempotent",
    r"sbatch .* deploy/slurm/idle-burnin\.sh.*": "integration/deploy/test_slurm.py"
    "::test_a_job_preempts_an_idle_burn_in_which_goes_on_afterwards",
    # Containers and clusters.
    r"docker build .*": Because(
        "It needs a registry and gigabytes; docs/guides/kubernetes.md says how the image was built."
    ),
    r"docker run .*": Because("It needs Docker with NVIDIA's container toolkit and a GPU."),
    r"kubectl kustomize .*|run=\$\(date .*|for node in .*|n=\$\(\(n \+ 1\)\)"
    r"|sed \"s/node-to.*|done": (
        "integration/deploy/test_kubernetes.py::test_the_document_makes_a_job_for_each_node"
    ),
    r"for file in deploy/prometheus/.*|echo '---'|printf '(?:apiVersion|metadata):.*"
    r"|sed 's/\^/  /'.*|done > sentinel-rules\.yaml|kubectl create configmap .*": (
        "integration/deploy/test_kubernetes.py"
        "::test_the_document_makes_rules_and_dashboards_for_the_operator"
    ),
    r"(?:kubectl|helm) .*": _CLUSTER,
    r"deploy/kubernetes/device-taints/device_taints\.py.*": (
        "integration/deploy/test_device_taints.py::test_a_faulty_gpu_gets_a_rule_and_only_that_one"
    ),
}


def proof_of(text: str) -> str | Because | None:
    """Find what runs a command, or why nothing does; None if it is not listed."""
    return next((PROOFS[one] for one in PROOFS if re.fullmatch(one, text)), None)
