"""The scene of the pictures and of most tests: two racks, five queues, and one of everything that a cell can be."""

from typing import Any

from tests.page.scene import A100, H100, WHOLE, Scene, device, moment, queue, share, waiting, why

SENTENCE = "Of 2 domains of level rack, none has room for 8 pods together: the best, rack-a, has room for at most 7."
LANGUAGE = (
    "Only 1 of 3 pods that start together find room now; for the next pod, 8 of 9 nodes have too few GPUs (requested 1,"
    " at most 0 free), 1 is cordoned."
)
NOTEBOOK = "No node has room: 8 of 9 nodes lack 0.5 of a GPU, 1 is cordoned."
PREEMPTED = "Pod language/bert-1 was evicted for workload vision/train-llm, which has a higher priority."
HIDDEN = "no rights there"


def story() -> Scene:
    """Build the scene."""
    scene = Scene()
    _nodes(scene)
    _queues(scene)
    _shares(scene)
    _waiting(scene)
    scene.changes = {}
    return scene


def _nodes(scene: Scene) -> None:
    for rack, names in {"rack-a": ("a-1", "a-2", "a-3", "a-4"), "rack-b": ("b-1", "b-2", "b-3")}.items():
        for name in names:
            scene.put("nodes", [f"gpu-{name}", H100, 8, 8000, f"zone-1/{rack}", "ready", "ok", "", "plugin"])
            for index in range(8):
                scene.put("devices", device(f"gpu-{name}", index, clique=index // 4))
    scene.put("nodes", ["gpu-b-3", H100, 8, 0, "zone-1/rack-b", "cordoned", "stale", "", "plugin"])
    contested = "device 2: the agent and a pod disagree who holds it"
    scene.put("nodes", ["gpu-b-2", H100, 8, 0, "zone-1/rack-b", "contested", "ok", contested, "plugin"])
    scene.put("nodes", ["old-1", A100, 4, 4000, "", "ready", "none", "", "plugin"])
    scene.put("nodes", ["mig-1", A100, 4, 2000, "", "ready", "ok", "", "claims"])
    for index in range(4):
        scene.put("devices", [f"old-1/{index}", "old-1", index, A100, None, None, "unknown", None, ""])
        profile = "3g.20gb" if index < 2 else "1g.5gb"
        scene.put("devices", [f"mig-1/{index}", "mig-1", index, A100, 20_480, None, "healthy", None, profile])
    scene.put("devices", device("gpu-a-4", 7, clique=1, health="unhealthy"))


def _queues(scene: Scene) -> None:
    scene.put(
        "queues",
        queue("research", deserved=40, fair=44, held=39, asked=66, waiting=3, pods=20),
        queue("vision", "research", deserved=24, fair=28, held=26, asked=42, waiting=2, pods=17),
        queue("language", "research", deserved=16, fair=16, held=13, asked=24, limit=32, waiting=1, pods=3),
        queue("product", deserved=16, fair=12, held=9, asked=9),
        queue("serving", "product", deserved=16, fair=12, held=9, asked=9, limit=12),
        ["", "", "", 0, 0, None, 2000, 2000, None, 0, 0],
    )


def _shares(scene: Scene) -> None:
    def whole(node: str, indices: range, job: str, name: str, **of: Any) -> None:
        for index in indices:
            pod = f"{name}/{job}-{node[-3:]}-{index}"
            scene.put("shares", share(f"{node}/{index}", pod, name, group=job, **of))

    for node in ("gpu-a-1", "gpu-a-2"):
        whole(node, range(8), "train-vit", "vision")
    whole("gpu-a-3", range(4), "bert", "language")
    whole("gpu-a-3", range(4, 8), "llm", "language", state="reserved")
    whole("gpu-a-4", range(2), "bert", "language", state="leaving")
    whole("gpu-b-1", range(8), "eval", "vision")
    whole("gpu-b-2", range(4), "api", "serving")
    whole("gpu-b-3", range(2), "api", "serving")
    for at, parts in {"gpu-a-4/3": (500, 250), "gpu-b-2/5": (300,)}.items():
        for number, milli in enumerate(parts):
            scene.put("shares", share(at, f"serving/asr-{at[-1]}-{number}", "serving", milli=milli, group="asr"))
    scene.put(
        "shares",
        share("gpu-b-3/6", "/", "", state="foreign"),
        share("gpu-b-3/7", "kube-system/dcgm", "", state="foreign"),
    )
    scene.put("shares", share("mig-1/0", "vision/notebook", "vision"), share("mig-1/2", "/", "language"))


def _waiting(scene: Scene) -> None:
    scene.put(
        "waiting",
        waiting(1, "vision/train-llm", "vision", SENTENCE, pods=16, minimum=8, reason="GangDoesNotFit"),
        waiting(2, "/", "language", LANGUAGE, pods=3, key="hidden"),
        waiting(3, "vision/notebook-2", "vision", NOTEBOOK, gpu_milli=500),
    )
    members = [
        {"name": f"train-llm-{number}", "state": "Held", "node": None if number else "gpu-a-4"} for number in range(3)
    ]
    decision = {
        "generation": 7,
        "cause": "preempt",
        "onBehalfOf": "vision/train-llm",
        "pods": [{"name": "bert-0", "uid": "u", "node": "gpu-a-4"}],
        "podCount": 1,
    }
    scene.whys["vision/train-llm"] = why(
        "vision",
        "train-llm",
        why={"reason": "GangDoesNotFit", "sentence": SENTENCE, "details": {"gpuMilli": 16 * WHOLE}},
        position={"aheadInQueue": 0, "firstAhead": [], "ahead": 0, "atLeast": False},
        podsByState={"Held": 16},
        minMember=8,
        members=members,
        waitsFor=[{"namespace": "language", "name": "bert-1", "node": "gpu-a-4", "since": moment(610)}],
        decisions=[
            {**decision, "at": moment(610), "outcome": "Evicted", "sentence": PREEMPTED},
            {**decision, "at": moment(2400), "outcome": "Refused", "cause": "GangDoesNotFit", "sentence": SENTENCE},
        ],
    )
    scene.whys["vision/train-vit"] = why("vision", "train-vit", state="Running", position=None)
