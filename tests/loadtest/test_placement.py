"""What the replay of traces prints for a small sample of a public trace, and what it refuses."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from loadtest.placement import main
from tests.loadtest.openb_sample import NODES, PODS

SEEDS = [42, 43, 44, 45, 46]


def run(*arguments: object) -> int:
    return main([*map(str, ("--nodes", NODES, "--pods", PODS)), *map(str, arguments)])


def test_leeboard_uses_more_gpus_than_the_published_policies_which_rank_as_published(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--seeds", *SEEDS, "--policies", "random", "bestfit", "fgd", "leeboard", "-o", "json") == 0

    found = defaultdict[str, list[float]](list)
    for line in map(json.loads, capsys.readouterr().out.splitlines()):
        found[line["policy"]].append(line["allocation_percent"])
    means = {policy: fmean(percents) for policy, percents in found.items()}
    assert {policy: len(percents) for policy, percents in found.items()} == dict.fromkeys(means, len(SEEDS))
    # Published for the whole trace: 87.43, 93.30 and 94.95.
    assert means["bestfit"] / means["random"] > 1.03
    assert means["fgd"] / means["bestfit"] > 1.0
    assert means["leeboard"] / means["fgd"] > 1.005
    assert 90 < means["fgd"] < 100


def test_json_has_one_object_a_line_for_each_trace_seed_and_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "mine.csv"
    other.write_bytes(PODS.read_bytes())

    assert run(other, "--seeds", "1", "2", "--policies", "bestfit", "leeboard", "-o", "json") == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["trace"], line["seed"], line["policy"]) for line in lines] == [
        (trace, seed, policy) for trace in ("sample", "mine") for seed in (1, 2) for policy in ("bestfit", "leeboard")
    ]
    assert {tuple(line) for line in lines} == {
        ("trace", "policy", "seed", "allocation_percent", "decisions_per_second", "moved_gpus")
    }
    assert all(line["decisions_per_second"] > 0 for line in lines)
    assert [line["allocation_percent"] for line in lines[:4]] == [line["allocation_percent"] for line in lines[4:]]


def test_the_gpus_of_moved_pods_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "42", "--policies", "leeboard", "consolidating", "-o", "json") == 0

    still, moving = map(json.loads, capsys.readouterr().out.splitlines())
    assert (still["moved_gpus"], moving["moved_gpus"] > 0) == (0, True)
    assert abs(moving["allocation_percent"] - still["allocation_percent"]) < 1


def test_table_has_means_errors_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "2", "--policies", "bestfit", "fgd") == 0

    title, heads, bestfit, fgd, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("sample: 61 nodes, 314 GPUs, 408 pods;")
    assert " ".join(heads.split()) == "policy allocation % std error minus fgd std error decisions/s moved GPUs"
    name, mean, error, difference, error_of_difference, speed, moved = bestfit.split()
    assert (name, moved, len(fgd.split())) == ("bestfit", "0.0", 5)
    assert float(difference) == pytest.approx(float(mean) - float(fgd.split()[1]), abs=0.011)
    assert min(float(error), float(error_of_difference), float(speed.replace(",", ""))) >= 0


def test_title_tells_the_size_of_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "--policies", "leeboard", "--sample", "5") == 0

    assert "; seeds 1; 5 nodes offered to leeboard at a time" in capsys.readouterr().out.splitlines()[0]


def test_one_seed_has_no_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1", "1", "--policies", "random") == 0

    assert capsys.readouterr().out.splitlines()[2].split()[2] == "-"


NODE_HEAD, POD_HEAD = "sn,cpu_milli,memory_mib,gpu,model\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        (
            "--nodes",
            POD_HEAD,
            "has no column sn, gpu, model. Give a node list of the openb format, a CSV file with the",
        ),
        ("--nodes", "", "has no column sn, cpu_milli, memory_mib, gpu, model."),
        ("--nodes", NODE_HEAD, "has no line below the titles."),
        ("--nodes", f"{NODE_HEAD}a,1000,1024,0,\n", "no node has a GPU."),
        ("--nodes", f"{NODE_HEAD}a,1000,1024,65,T4\n", "line 2: gpu is '65'. Write a whole number from 0 to 64 there."),
        ("--nodes", f"{NODE_HEAD}a,-1,1024,1,T4\n", "line 2: cpu_milli is '-1'."),
        ("--nodes", f"{NODE_HEAD}a,1000\n", "line 2: there are fewer values than columns."),
        ("--pods", NODE_HEAD, "has no column name, num_gpu, gpu_milli. Give a pod list"),
        ("--pods", f"{POD_HEAD}a,1000,1024,0,0,\n", "no pod requests a GPU."),
        ("--pods", f"{POD_HEAD}a,1000,1024,1,0,\n", "gpu_milli is '0'. Write a whole number from 1 to 1000 there."),
        ("--pods", f"{POD_HEAD}a,1000,1024,1,1e3,\n", "line 2: gpu_milli is '1e3'."),
        ("--pods", f"{POD_HEAD}a,{'9' * 5000},1024,1,1000,\n", "line 2: cpu_milli is '999"),
        ("--pods", "\xff", "is not a CSV file:"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_advice(
    option: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_bytes(text.encode("latin-1"))

    assert run(option, wrong) == 1

    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert printed.err.startswith(str(wrong))
    assert said in printed.err
    assert len(printed.err) < 500


def test_missing_file_is_refused_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--pods", tmp_path / "none.csv") == 1

    assert "none.csv cannot be read: No such file or directory. Give a pod list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policies", "worstfit"), "invalid choice: 'worstfit' (choose from"),
        (("--seeds", "one"), "invalid int value: 'one'"),
        (("--sample", "0"), "'0' is no number of nodes; give a whole number from 1"),
        (("--sample", "9" * 5000), "is no number of nodes; give a whole number from 1"),
        (("--plot", "a.txt"), "'a.txt' is no picture; name a file that ends in .svg, .png, .pdf"),
    ],
)
def test_unknown_values_are_refused_with_the_known_ones(
    arguments: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*arguments)

    assert said in capsys.readouterr().err


def test_plot_without_matplotlib_is_refused_before_the_first_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert run("--plot", tmp_path / "allocation.svg") == 1

    printed = capsys.readouterr()
    assert (printed.out, "matplotlib is not installed" in printed.err) == ("", True)
