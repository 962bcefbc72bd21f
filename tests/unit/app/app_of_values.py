"""An App whose tasks and workflows publish values."""

from __future__ import annotations

from mainspring import App, current_job, workflow

app = App()


@app.task
def count(number: int) -> int:
    for done in range(number):
        current_job().publish("done", done + 1)
    current_job().publish("last", {"of": number})
    return number


@app.task(executor="process")
def in_a_process() -> None:
    current_job().publish("where", "process")


@app.task
async def on_the_loop() -> None:
    current_job().publish("where", "loop")


@app.task
def step() -> str:
    try:
        current_job().publish("where", "step")
    except Exception as error:  # noqa: BLE001 - it is the result
        return str(error)
    return ""


@app.workflow
async def flow(number: int) -> str:
    workflow.publish("stage", "begun")
    await count.submit(number)
    workflow.publish("stage", "counted")
    refusal = await step.step()
    workflow.publish("stage", "stepped")
    await count.submit(number)
    return refusal


@app.workflow
async def chain(left: int) -> int:
    workflow.publish("left", left)
    if left:
        workflow.publish(f"seen {left}", True)
        raise workflow.continue_as_new(left - 1)
    return left


@app.workflow
async def too_many() -> None:
    for number in range(101):
        workflow.publish(f"n{number}", number)


@app.workflow
async def waits() -> str:
    workflow.publish("stage", "waiting")
    return await app.signal("go", str).receive()
