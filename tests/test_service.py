import asyncio
import gc
import sys

from app.service import GARBAGE_THRESHOLDS, SWITCH_AFTER_S, Endpoints, serve
from app.settings import Settings
from app.simulation.world import furnished


async def test_the_interpreter_is_tuned_while_the_service_runs_and_as_before_afterwards() -> None:
    gc.unfreeze()  # what the tests themselves froze, see conftest.py
    before = gc.get_threshold(), gc.get_freeze_count(), sys.getswitchinterval()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    settings = Settings(webhook_port=0, operations_port=0)
    service = asyncio.create_task(serve(settings, furnished(), on_ready=ready.set_result))
    await ready

    during = gc.get_threshold(), gc.get_freeze_count() > 0, sys.getswitchinterval()
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)

    assert during == (GARBAGE_THRESHOLDS, True, SWITCH_AFTER_S)
    assert (gc.get_threshold(), gc.get_freeze_count(), sys.getswitchinterval()) == before
    gc.freeze()
