import asyncio
import gc

from app.service import GARBAGE_THRESHOLDS, Endpoints, serve
from app.settings import Settings
from app.simulation.world import furnished


async def test_garbage_is_looked_for_seldom_while_the_service_runs_and_as_before_afterwards() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    ready: asyncio.Future[Endpoints] = asyncio.get_running_loop().create_future()
    settings = Settings(webhook_port=0, operations_port=0)
    service = asyncio.create_task(serve(settings, furnished(), on_ready=ready.set_result))
    await ready

    during = gc.get_threshold(), gc.get_freeze_count() > 0
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)

    assert during == (GARBAGE_THRESHOLDS, True)
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
