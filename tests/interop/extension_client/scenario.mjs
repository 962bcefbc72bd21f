// Runs mainspring.mjs against the server on the given port, and prints its observations as one JSON object.

import { setTimeout as sleep } from "node:timers/promises";
import { Client, OtherOutcome, Worker } from "./mainspring.mjs";

const port = Number(process.argv[2]);
const aborted = (signal) =>
  new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve)));
const events = [];

const handlers = {
  echo: async (payload) => payload,
  flaky: async (_, job) => {
    if (job.info.attempt < 3) throw new TypeError(`attempt ${job.info.attempt}`);
    return String(job.info.max_attempts);
  },
  hopeless: async () => {
    throw new OtherOutcome("failed", { error: { type: "Hopeless", message: "never" }, final: true });
  },
  patient: async (_, job) => {
    if (!events.includes("snoozed")) {
      events.push("snoozed");
      throw new OtherOutcome("snoozed", { delay: 0.1 });
    }
    return String(job.info.attempt);
  },
  long: async (_, job) => {
    job.status(1, 2);
    await aborted(job.signal);
    events.push(`stopped: ${job.signal.reason}`);
    throw new Error("stopped");
  },
  stubborn: async (_, job) => {
    await aborted(job.signal);
    return "nobody listens";
  },
  beating: async () => {
    await sleep(900);
    return "alive";
  },
};

const client = await Client.connect(port);
const tools = await Client.connect(port);
const worker = await Worker.connect(port, handlers, { places: 4 });
const seen = {};
const outcome = ({ state, attempt, error, data }) => [state, attempt, error, data.toString()];
const run = async (name, payload, options) => {
  const { handle } = await client.submit(name, payload, options);
  return outcome(await client.result(handle));
};
const code = (promise) => promise.then(() => "no fault", (error) => error.code);

const bytes = Buffer.from([0, 1, 2, 0, 255]);
const { handle: raw } = await client.submit("echo", bytes);
seen.raw = [...(await client.result(raw)).data];
seen.again = [...(await tools.result(raw)).data];
seen.unknown = (await client.result("H:nowhere:1")).state;

const retry = { max_attempts: 3, initial: 0.02, jitter: 0 };
seen.flaky = await run("flaky", "", { retry });
seen.hopeless = await run("hopeless", "", { retry });
seen.patient = await run("patient", "");
const start = Date.now();
seen.delayed = await run("echo", "later", { delay: 0.3 });
seen.delay = Date.now() - start;
seen.beating = await run("beating", "", { heartbeat: 0.3 });
seen.timeout = await run("stubborn", "", { timeout: 0.2 });

const waiting = await client.submit("nobody", "a", { unique: "u", priority: "low" });
const joined = await client.submit("nobody", "b", { unique: "u" });
seen.joined = [waiting.joined, joined.joined, joined.handle === waiting.handle];
const { handle } = waiting;
const shown = await tools.call("jobs.show", { handle });
seen.shown = [shown.function, shown.unique, shown.state, shown.priority, shown.input_size];
seen.listed = (await tools.call("jobs.list", { function: "nobody" })).items.map((job) => job.handle === handle);
seen.cancelled = await tools.call("jobs.cancel", { handle, reason: "not needed" });
seen.cancelledResult = outcome(await client.result(handle));
seen.retried = (await tools.call("jobs.retry", { handle })).state;
seen.conflict = await code(tools.call("jobs.retry", { handle }));
seen.notFound = await code(tools.call("jobs.show", { handle: "H:nowhere:1" }));
seen.usage = await code(tools.call("jobs.dance"));
seen.refused = await code(client.submit("echo", "", { colour: "red" }));

const watched = [];
await tools.call("jobs.watch", { function: "long" }, (job) => watched.push(job.state));
const long = await client.submit("long");
const progress = new Promise((resolve) => client.result(long.handle, (...values) => resolve(values)));
seen.progress = await progress;
seen.asked = (await tools.call("jobs.cancel", { handle: long.handle })).state;
seen.stopped = outcome(await client.result(long.handle));
await tools.call("node.status");
seen.watched = watched;

await worker.pause();
const { handle: held } = await client.submit("echo", "held");
const early = await Promise.race([client.result(held), sleep(200, "nothing")]);
worker.resume();
seen.paused = [early, outcome(await client.result(held))];

const batch = await Promise.all(Array.from({ length: 500 }, (_, number) => client.submit("echo", String(number))));
const results = await Promise.all(batch.map((job) => client.result(job.handle)));
seen.batch = results.every((result, number) => result.data.toString() === String(number));

const last = await client.submit("echo", "across connections");
worker.connection.close();
seen.reconnected = outcome(await client.result(last.handle))[3];
seen.stale = worker.verdicts.filter((verdict) => verdict === "stale").length;
seen.events = events;

worker.close();
client.close();
tools.close();
console.log(JSON.stringify(seen));
