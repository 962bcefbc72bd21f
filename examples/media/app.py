"""A media pipeline as a workflow: measure every recording of a directory, then make all of them equally loud."""

import sys
import wave
from array import array
from math import pi, sin
from pathlib import Path

from mainspring import App, Retry, workflow

LOUDNESS = 0.9
"""The peak of each recording afterwards, of what 16 bits can hold."""

app = App()


@app.task
def recordings(directory: str) -> list[str]:
    """Return the paths of the recordings. A local step: the list is read once, whatever files come later."""
    return sorted(str(path) for path in Path(directory).glob("*.wav"))


@app.task(executor="process", retry=Retry(max_attempts=3), timeout="5m")
def measure(path: str) -> float:
    """Return the peak of a recording, from 0 to 1. It runs in a process of its own and uses a core of its own."""
    _, samples = read(path)
    return max(map(abs, samples), default=0) / 32767


@app.task(executor="process", retry=Retry(max_attempts=3), timeout="5m")
def level(path: str, gain: float) -> str:
    """Write a louder or softer copy, and return its path. A second attempt writes the same file again."""
    parameters, samples = read(path)
    louder = array("h", (max(-32767, min(32767, round(one * gain))) for one in samples))
    target = Path(path).parent / "out" / Path(path).name
    target.parent.mkdir(exist_ok=True)
    with wave.open(str(target), "wb") as file:
        file.setparams(parameters)
        file.writeframes(louder.tobytes())
    return str(target)


@app.workflow(timeout="1d")
async def pipeline(directory: str) -> dict[str, float]:
    """Return the gain of each recording."""
    paths = await recordings.step(directory)
    done = 0

    async def process(path: str) -> float:
        nonlocal done
        peak = await measure.submit(path)
        gain = LOUDNESS / peak if peak else 1.0
        await level.submit(path, gain)
        done += 1
        workflow.progress(done, len(paths), Path(path).name)
        return round(gain, 2)

    gains = await workflow.map(process, paths, limit=4)  # at most four recordings are under way
    return {Path(path).stem: gain for path, gain in zip(paths, gains, strict=True)}


def read(path: str) -> tuple[wave._wave_params, array]:
    with wave.open(path, "rb") as file:
        return file.getparams(), array("h", file.readframes(file.getnframes()))


def sample(directory: Path, number: int) -> None:
    """Write a tone of a tenth of a second, the first ones softer than the last."""
    tone = array("h", (round(3000 * number * sin(2 * pi * 220 * number * one / 8000)) for one in range(800)))
    with wave.open(str(directory / f"tone-{number}.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(tone.tobytes())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for place in range(1, 9):
        sample(folder, place)
