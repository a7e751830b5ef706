"""Writes shortly after each other."""

import asyncio

from app.control.writers.coalescer import WriteCoalescer


async def test_writes_soon_after_a_burst_wait_for_the_next_burst_and_later_writes_start_at_once() -> None:
    bursts, began = WriteCoalescer(1.0), list[float]()

    async def write(after_s: float) -> None:
        await asyncio.sleep(after_s)
        await bursts.wait()
        began.append(asyncio.get_running_loop().time())

    await asyncio.gather(*map(write, [0.0, 0.25, 0.75, 1.25, 1.5, 4.0]))

    assert began == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0]


async def test_a_cancelled_write_does_not_block_the_others() -> None:
    bursts = WriteCoalescer(1.0)
    await bursts.wait()
    second, third = (asyncio.create_task(bursts.wait()) for _ in range(2))
    await asyncio.sleep(0.5)

    second.cancel()
    await third

    assert asyncio.get_running_loop().time() == 1.0
