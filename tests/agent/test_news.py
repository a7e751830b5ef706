"""What the log says of a report."""

from app.agent.news import Line, news
from app.agent.readings import Failure, Kubelet
from app.agent.report import status_of
from app.model.device import Health
from tests.agent.seen import device, holding, memory, sight


def test_the_first_report_names_every_device_and_what_is_wrong() -> None:
    seen = sight(
        device(product="A100"), failures=(Failure("call", "no", "GPU-0"),), kubelet=Kubelet(answers=False, reason="x")
    )

    assert list(news(None, status_of(seen))) == [
        Line("kubelet_is_silent", {"answers": False, "reason": "x"}),
        Line("device", {"uuid": "GPU-0", "index": 0, "product": "A100", "health": "Healthy"}),
        Line("not_told", {"call": "call", "error": "no", "device": "GPU-0"}),
    ]


def test_only_what_is_new_is_said_again() -> None:
    before = sight(device(), failures=(Failure("call", "no"),))
    held = Kubelet(answers=True, holdings=(holding("a/p", "GPU-0"),))
    same = sight(device(memory=memory(9000)), failures=(Failure("call", "no"),), kubelet=held)
    worse = sight(device(health=Health.UNHEALTHY, health_reason="XID 79"), failures=(Failure("call", "no"),))

    assert list(news(status_of(before), status_of(same))) == []
    assert list(news(status_of(before), status_of(worse))) == [
        Line("device", {"uuid": "GPU-0", "index": 0, "health": "Unhealthy", "healthReason": "XID 79"})
    ]


def test_a_driver_that_goes_and_comes_back_is_two_lines() -> None:
    gone, back = status_of(sight(message="no driver")), status_of(sight())

    assert list(news(None, gone)) == [
        Line("no_devices", {"reason": "no driver"}),
        Line("kubelet_answers", {"answers": True}),
    ]
    assert list(news(gone, back)) == [Line("devices_are_back", {})]
