"""The output of `leeboard gpus`, over the real read API."""

import asyncio
from dataclasses import replace

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from inline_snapshot import snapshot

from app.cli import main
from app.cli.gpu_tables import nodes_table
from app.client.service_ways import NO_ANSWER_FIX
from app.model.device import Health
from app.model.occupancy import NodeUse, Reserved
from app.web.gpu_answers import GpuNodeAnswer
from tests.cli.installation import Replica, answering
from tests.kube.apiserver import listening, says
from tests.occupied import DGX1, GPU_MIB, device, node_use, occupant, on, shared, switched
from tests.web.fakes import FakeInspect

TRAIN = occupant("train-0-worker-3-abcde", portion=0.5, promised_mib=GPU_MIB // 2, used_mib=39_100)
GREEDY = occupant("infer-7", portion=0.1, promised_mib=8_192, used_mib=9_300)
WHOLE = occupant("llm-0", used_mib=70_000)


def busy() -> NodeUse:
    """Build a node of eight devices with every kind of state."""
    return node_use(
        "gpu-a",
        on(device(0, used_mib=48_400), TRAIN, GREEDY),
        on(device(1, used_mib=70_000), whole=[WHOLE]),
        on(device(2), is_free=True),
        on(device(3, used_mib=None), is_free=True),
        on(device(4, health=Health.UNHEALTHY, health_reason="XID 79: GPU has fallen off the bus")),
        on(device(5, is_mig=True, mig_profiles=("1g.10gb", "3g.40gb", "1g.10gb"))),
        on(device(6, foreign_mib=3_000, used_mib=3_000)),
        on(device(7), occupant("eval", portion=0.25, promised_mib=20_000), state="contested", reason="who has it?"),
        layout=DGX1,
        opening=[shared("uid-late-0", occupant("late", portion=0.5, promised_mib=40_000), state="opening")],
        failures=("nvmlDeviceGetFieldValues: Not Supported",),
    )


async def run(*arguments: str, gpus: tuple[NodeUse, ...] = (), columns: int = 80) -> Result:
    async with answering(Replica(inspect=FakeInspect(gpus=gpus))) as url:
        runner = CliRunner(env={"COLUMNS": f"{columns}", "LEEBOARD_URL": url})
        return await asyncio.to_thread(runner.invoke, main, ["gpus", *arguments])


async def shown(*arguments: str, gpus: tuple[NodeUse, ...] = (), columns: int = 80) -> str:
    result = await run(*arguments, gpus=gpus, columns=columns)
    assert result.exit_code == 0, result.output
    return "\n" + result.stdout


async def test_every_node_is_a_line() -> None:
    full = node_use("ip-10-0-12-34.eu-west-1.compute.internal", on(device(0, used_mib=70_000), whole=[WHOLE]))
    mute = node_use("gpu-b", message="no driver: libnvidia-ml.so.1 cannot be loaded")
    silent = node_use(
        "gpu-c", *(on(device(index, used_mib=None)) for index in range(16)), silent_s=900, is_trusted=False
    )

    assert await shown(gpus=(busy(), mute, silent, full)) == snapshot("""\

NODE              GPUS  FREE  RESERVED  SHARED        GiB USED  HEALTH
gpu-a                8     2         0       2  118.6 of 637.2  1 unhealthy
gpu-b                0     0         0       0        ? of 0.0  no driver: libnv
                                                                idia-ml.so.1
                                                                cannot be loaded
gpu-c               16     0         0       0     ? of 1274.4  silent for 15
                                                                min
ip-10-0-12-34.eu     1     0         0       0    68.4 of 79.6  healthy
-west-1.compute.
internal
""")


def test_an_incomplete_list_says_so() -> None:
    items = [GpuNodeAnswer.of(busy()).model_dump(mode="json", by_alias=True)]

    assert nodes_table({"items": items, "incomplete": "There is more."}, width=80).endswith("\n\nThere is more.")
    assert nodes_table({"items": items}, width=80).endswith("1 unhealthy")
    assert nodes_table({"items": [], "incomplete": "There is more."}, width=80) == "There is more."


async def test_a_node_shows_its_devices_their_pods_its_problems_and_its_links() -> None:
    assert await shown("gpu-a", gpus=(busy(),)) == snapshot("""\

gpu-a: 8 x NVIDIA H100 80GB HBM3 of 79.6 GiB, driver 550.54.15, heard 12 s ago

GPU  DEVICE AND PODS                  GiB USED  PROMISED  STATE
  0  GPU-00000000           █████░░░      47.3      47.8  shared
       team/train-0-worker  ████░░░░      38.2      39.8  0.50
       -3-abcde
       team/infer-7         █░░░░░░░       9.1       8.0  0.10, 1.1 over
  1  GPU-00000001           ███████░      68.4      79.6  whole
       team/llm-0           ███████░      68.4      79.6  whole
  2  GPU-00000002           ░░░░░░░░       0.0         -  free
  3  GPU-00000003                            ?         -  free
  4  GPU-00000004           ░░░░░░░░       0.0         -  unhealthy
  5  GPU-00000005           ░░░░░░░░       0.0         -  MIG 2x 1g.10gb 1x
                                                          3g.40gb
  6  GPU-00000006           ░░░░░░░░       2.9         -  foreign
  7  GPU-00000007           ░░░░░░░░       0.0      19.5  shared, contested
       team/eval                             ?      19.5  0.25
     uid-late-0                              -      39.1  opening
       team/late                             ?      39.1  0.50

! GPU 4 is unhealthy: XID 79: GPU has fallen off the bus
! GPU 6: 2.9 GiB are used by processes outside of pods
?: what the pod uses is not measured
! no new pod may share GPU 7: who has it?
! not reported: nvmlDeviceGetFieldValues: Not Supported

         0    1    2    3    4    5    6    7
GPU 0    X  NV1  NV1  NV2  NV2  SYS  SYS  SYS
GPU 1  NV1    X  NV2  NV1  SYS  NV2  SYS  SYS
GPU 2  NV1  NV2    X  NV2  SYS  SYS  NV1  SYS
GPU 3  NV2  NV1  NV2    X  SYS  SYS  SYS  NV1
GPU 4  NV2  SYS  SYS  SYS    X  NV1  NV1  NV2
GPU 5  SYS  NV2  SYS  SYS  NV1    X  NV2  NV1
GPU 6  SYS  SYS  NV1  SYS  NV1  NV2    X  NV2
GPU 7  SYS  SYS  SYS  NV1  NV2  NV1  NV2    X
NV#: connected by # NVLinks, SYS: between NUMA nodes
All connected by NVLink: 0-3, 4-7
""")


async def test_the_matrix_of_sixteen_devices_is_split_into_blocks_that_fit() -> None:
    node = node_use("gpu-c", *(on(device(index), is_free=True) for index in range(16)), layout=switched(16))

    assert await shown("gpu-c", gpus=(node,)) == snapshot("""\

gpu-c: 16 x NVIDIA H100 80GB HBM3 of 79.6 GiB, driver 550.54.15, heard 12 s ago

GPU  DEVICE AND PODS            GiB USED  PROMISED  STATE
  0  GPU-00000000     ░░░░░░░░       0.0         -  free
  1  GPU-00000001     ░░░░░░░░       0.0         -  free
  2  GPU-00000002     ░░░░░░░░       0.0         -  free
  3  GPU-00000003     ░░░░░░░░       0.0         -  free
  4  GPU-00000004     ░░░░░░░░       0.0         -  free
  5  GPU-00000005     ░░░░░░░░       0.0         -  free
  6  GPU-00000006     ░░░░░░░░       0.0         -  free
  7  GPU-00000007     ░░░░░░░░       0.0         -  free
  8  GPU-00000008     ░░░░░░░░       0.0         -  free
  9  GPU-00000009     ░░░░░░░░       0.0         -  free
 10  GPU-0000000a     ░░░░░░░░       0.0         -  free
 11  GPU-0000000b     ░░░░░░░░       0.0         -  free
 12  GPU-0000000c     ░░░░░░░░       0.0         -  free
 13  GPU-0000000d     ░░░░░░░░       0.0         -  free
 14  GPU-0000000e     ░░░░░░░░       0.0         -  free
 15  GPU-0000000f     ░░░░░░░░       0.0         -  free

           0     1     2     3     4     5     6     7     8     9    10    11
GPU 0      X  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 1   NV18     X  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 2   NV18  NV18     X  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 3   NV18  NV18  NV18     X  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 4   NV18  NV18  NV18  NV18     X  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 5   NV18  NV18  NV18  NV18  NV18     X  NV18  NV18  NV18  NV18  NV18  NV18
GPU 6   NV18  NV18  NV18  NV18  NV18  NV18     X  NV18  NV18  NV18  NV18  NV18
GPU 7   NV18  NV18  NV18  NV18  NV18  NV18  NV18     X  NV18  NV18  NV18  NV18
GPU 8   NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X  NV18  NV18  NV18
GPU 9   NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X  NV18  NV18
GPU 10  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X  NV18
GPU 11  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18     X
GPU 12  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 13  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 14  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18
GPU 15  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18  NV18

          12    13    14    15
GPU 0   NV18  NV18  NV18  NV18
GPU 1   NV18  NV18  NV18  NV18
GPU 2   NV18  NV18  NV18  NV18
GPU 3   NV18  NV18  NV18  NV18
GPU 4   NV18  NV18  NV18  NV18
GPU 5   NV18  NV18  NV18  NV18
GPU 6   NV18  NV18  NV18  NV18
GPU 7   NV18  NV18  NV18  NV18
GPU 8   NV18  NV18  NV18  NV18
GPU 9   NV18  NV18  NV18  NV18
GPU 10  NV18  NV18  NV18  NV18
GPU 11  NV18  NV18  NV18  NV18
GPU 12     X  NV18  NV18  NV18
GPU 13  NV18     X  NV18  NV18
GPU 14  NV18  NV18     X  NV18
GPU 15  NV18  NV18  NV18     X
NV#: connected by # NVLinks
All connected by NVLink: 0-15
""")


@pytest.mark.parametrize("columns", [60, 80, 200])
async def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    name = "n" * 200
    pods = [occupant("p" * 253, promised_mib=10**9, used_mib=10**9) for _ in range(3)]
    uses = [on(device(index, product="x" * 96, health_reason="y" * 256), *pods) for index in range(16)]
    node = node_use(name, *uses, layout=switched(16), message="z" * 512)

    text = await shown(gpus=(node,), columns=columns) + await shown(name, gpus=(node,), columns=columns)

    assert max(len(line) for line in text.splitlines()) <= columns


async def test_a_node_without_known_holders_of_its_devices_says_so() -> None:
    node = node_use("gpu-a", on(device(0)), kubelet_answers=False, kubelet_reason="no socket at /x")

    text = await shown("gpu-a", gpus=(node,))

    assert "  0  GPU-00000000     ░░░░░░░░       0.0         -  unknown\n" in text
    assert "! the kubelet does not report which pods have the devices: no socket at /x\n" in text


async def test_devices_without_known_links_have_no_matrix() -> None:
    text = await shown("gpu-a", gpus=(node_use("gpu-a", on(device(0)), on(device(1))),))

    assert "NV" not in text.partition("HBM3")[2]


async def test_control_characters_from_a_node_do_not_reach_the_terminal() -> None:
    evil = "\x1b[2J\x07\u202e"
    node = node_use("gpu-a", on(device(0, product=evil, health=Health.UNKNOWN, health_reason=evil)), message=evil)

    text = await shown(gpus=(node,)) + await shown("gpu-a", gpus=(node,))

    assert not set(evil) & (set(text) - set("[2J"))


async def test_json_is_the_answer_of_the_service() -> None:
    several = orjson.loads((await run("-o", "json", gpus=(busy(),))).stdout)
    one = orjson.loads((await run("gpu-a", "-o", "json", gpus=(busy(),))).stdout)

    assert (several["kind"], one["kind"]) == ("GpuNodeStateList", "GpuNodeState")
    assert several["items"][0]["devices"] == one["devices"]
    assert (len(one["devices"]), one["links"]["paths"][0][:3]) == (8, ["X", "NV1", "NV1"])


async def test_an_unknown_node_gives_the_list_of_known_ones() -> None:
    result = await run("gpu/x", gpus=(busy(), node_use("gpu-b")))

    line = "Error: no agent reports GPUs on a node 'gpu/x'; there are gpu-a, gpu-b; did you mean gpu-a?\n"
    assert (result.exit_code, result.stderr) == (1, line)


async def test_a_cluster_without_any_agent_says_so() -> None:
    assert "No agent reports any GPU" in await shown()
    assert (await run("gpu-a")).stderr.endswith("there are none\n")


def test_a_service_that_does_not_answer_is_one_line_with_what_to_do() -> None:
    result = CliRunner().invoke(main, ["gpus", "--url", "http://127.0.0.1:1"])

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: http://127.0.0.1:1 does not answer: ")
    assert result.stderr.endswith(f"; {NO_ANSWER_FIX}\n")


@pytest.mark.parametrize(
    ("answer", "code", "says_so"),
    [
        (
            {"detail": "Leeboard failed on this request"},
            500,
            "gave no answer (500 Internal Server Error): Leeboard failed on this request; try again",
        ),
        ("<html>", 404, "is not Leeboard's operations port"),
        ({"kind": "GpuNodeStateList"}, 200, "cannot be read; does the service have the same version"),
    ],
)
async def test_an_answer_of_another_server_is_one_line(answer: object, code: int, says_so: str) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        return await says(answer, code=code)(request)

    async with listening(reply) as url:
        result = await asyncio.to_thread(CliRunner().invoke, main, ["gpus", "--url", url])

    assert (result.exit_code, says_so in result.stderr) == (1, True)


async def test_gpus_reserved_for_pods_are_counted_in_both_views() -> None:
    held = Reserved(state="Promised", devices=3, pods=2), Reserved(state="Awaiting", devices=1, pods=1)
    node = replace(node_use("gpu-a", *(on(device(index), is_free=True) for index in range(8))), reserved=held)

    line = (await shown(gpus=(node,))).splitlines()[-1].split()
    detail = await shown("gpu-a", gpus=(node,))

    assert line[:5] == ["gpu-a", "8", "8", "4", "0"]
    assert "3 GPUs reserved for 2 pods that are not bound yet: Promised" in detail
    assert "1 GPU reserved for 1 pod that is not bound yet: Awaiting" in detail
