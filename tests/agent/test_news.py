"""The log messages about a report."""

from app.agent.news import NewsLine, news
from app.agent.readings import DriverFailure, KubeletReading
from app.agent.report import status_of
from app.model.device import Health
from tests.agent.seen import device, holding, memory, sight


def test_the_first_report_logs_every_device_and_every_problem() -> None:
    seen = sight(
        device(product="A100"),
        failures=(DriverFailure("call", "no", "GPU-0"),),
        kubelet=KubeletReading(answers=False, reason="x"),
    )

    assert list(news(None, status_of(seen))) == [
        NewsLine("kubelet_is_silent", {"answers": False, "reason": "x"}),
        NewsLine("device", {"uuid": "GPU-0", "index": 0, "product": "A100", "health": "Healthy"}),
        NewsLine("not_told", {"call": "call", "error": "no", "device": "GPU-0"}),
    ]


def test_only_changes_are_logged_again() -> None:
    before = sight(device(), failures=(DriverFailure("call", "no"),))
    held = KubeletReading(answers=True, holdings=(holding("a/p", "GPU-0"),))
    same = sight(device(memory=memory(9000)), failures=(DriverFailure("call", "no"),), kubelet=held)
    worse = sight(device(health=Health.UNHEALTHY, health_reason="XID 79"), failures=(DriverFailure("call", "no"),))

    assert list(news(status_of(before), status_of(same))) == []
    assert list(news(status_of(before), status_of(worse))) == [
        NewsLine("device", {"uuid": "GPU-0", "index": 0, "health": "Unhealthy", "healthReason": "XID 79"})
    ]


def test_a_driver_that_is_unloaded_and_loaded_is_two_lines() -> None:
    gone, back = status_of(sight(message="no driver")), status_of(sight())

    assert list(news(None, gone)) == [
        NewsLine("no_devices", {"reason": "no driver"}),
        NewsLine("kubelet_answers", {"answers": True}),
    ]
    assert list(news(gone, back)) == [NewsLine("devices_are_back", {})]
