"""An App whose tasks and workflows write to streams."""

from __future__ import annotations

import threading

from mainspring import App, Retry, current_job, workflow

app = App()
gate = threading.Event()
flushed = threading.Event()


@app.task
def count(number: int) -> None:
    stream = current_job().stream("numbers")
    for one in range(number):
        stream.write(one)
    current_job().stream("texts").write("<b>bold</b>\n")


@app.task
def flushes() -> None:
    stream = current_job().stream("numbers")
    stream.write({"first": True})
    stream.flush()
    flushed.set()
    gate.wait(60)
    stream.write("last")


@app.task(executor="process")
def in_a_process() -> None:
    stream = current_job().stream("a")
    stream.write(1)
    stream.flush()
    stream.write(2)


@app.task
async def on_the_loop() -> str:
    stream = current_job().stream("a")
    stream.write(1)
    await stream.aflush()
    stream.write(2)
    try:
        stream.flush()
    except Exception as error:  # noqa: BLE001 - it is the result
        return str(error)
    return ""


@app.task(retry=Retry(2, initial=0.01))
def fails_once() -> None:
    current_job().stream("a").write(current_job().attempt)
    if current_job().attempt == 1:
        raise ValueError("once")


@app.task
def too_large() -> None:
    stream = current_job().stream("a")
    for _ in range(17):
        for _ in range(16):
            stream.write("x" * 65_000)
        stream.flush()


@app.task
def step() -> str:
    try:
        current_job().stream("a").write(1)
    except Exception as error:  # noqa: BLE001 - it is the result
        return str(error)
    return ""


@app.workflow
async def flow(number: int) -> str:
    stream = workflow.stream("stages")
    stream.write("begun")
    await count.submit(number)
    stream.write("counted")
    refusal = await step.step()
    stream.write("stepped")
    await count.submit(number)
    stream.write("complete")
    return refusal


@app.workflow
async def chain(left: int) -> int:
    workflow.stream("left").write(left)
    if left:
        raise workflow.continue_as_new(left - 1)
    return left


@app.workflow
async def too_many() -> None:
    for number in range(21):
        workflow.stream(f"n{number}").write(number)
