// A client and a worker of Mainspring's extension of the Gearman protocol, written from docs/reference/protocol.md alone.
// Needs only Node.js 18 or newer.

import net from "node:net";

const OPTION_REQ = 26, OPTION_RES = 27, ERROR = 19, WORK_STATUS = 12, WORK_DATA = 28, WORK_WARNING = 29;
const SUBMIT = 1000, SUBMITTED = 1001, WAIT = 1002, RESULT = 1003, CALL = 1004, ANSWER = 1005, FAULT = 1006, EVENT = 1007;
const REGISTER = 1010, READY = 1011, ASSIGN = 1012, SETTLE = 1013, SETTLED = 1014, HEARTBEAT = 1015, BEATEN = 1016;
const STOP = 1017, PAUSE = 1018, PAUSED = 1019;

// Number of arguments of each packet from the server; the last one may hold NULs.
const ARGUMENTS = {
  [OPTION_RES]: 1, [ERROR]: 2, [WORK_STATUS]: 3, [WORK_DATA]: 2, [WORK_WARNING]: 2, [SUBMITTED]: 2, [RESULT]: 5,
  [ANSWER]: 2, [FAULT]: 3, [EVENT]: 2, [ASSIGN]: 6, [SETTLED]: 3, [BEATEN]: 1, [STOP]: 3, [PAUSED]: 0,
};

const [MAGIC, NUL] = [Buffer.from("\0REQ"), Buffer.from([0])];

function encode(type, ...args) {
  const parts = args.flatMap((arg, index) => (index ? [NUL, Buffer.from(arg)] : [Buffer.from(arg)]));
  const body = Buffer.concat(parts);
  const header = Buffer.alloc(12);
  MAGIC.copy(header);
  header.writeUInt32BE(type, 4);
  header.writeUInt32BE(body.length, 8);
  return Buffer.concat([header, body]);
}

function split(body, count) {
  const args = [];
  let start = 0;
  for (let end; args.length < count - 1; start = end + 1) {
    end = body.indexOf(0, start);
    args.push(body.subarray(start, end).toString());
  }
  if (count) args.push(body.subarray(start));
  return args;
}

const json = (value) => (value && Object.keys(value).length ? JSON.stringify(value) : "");

export class ServerError extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.code = code;
  }
}

// One connection with the extension; `handle(type, args)` receives every packet.
class Connection {
  static open(port, handle, closed) {
    return new Promise((resolve, reject) => {
      const connection = new Connection(net.connect(port, "127.0.0.1"), closed);
      connection.handle = (type, args) => {
        if (type !== OPTION_RES) return reject(new ServerError(args[0], args[1]));
        connection.handle = handle;
        resolve(connection);
      };
      connection.socket.on("error", reject);
      connection.send(OPTION_REQ, "mainspring/2");
    });
  }

  constructor(socket, closed) {
    this.socket = socket.setNoDelay();
    this.rest = Buffer.alloc(0);
    socket.on("data", (data) => this.receive(data));
    socket.on("close", () => closed(this));
  }

  send(type, ...args) {
    this.socket.write(encode(type, ...args));
  }

  receive(data) {
    let buffer = this.rest.length ? Buffer.concat([this.rest, data]) : data;
    while (buffer.length >= 12) {
      const type = buffer.readUInt32BE(4);
      const end = 12 + buffer.readUInt32BE(8);
      if (buffer.length < end) break;
      if (type in ARGUMENTS) this.handle(type, split(buffer.subarray(12, end), ARGUMENTS[type]));
      buffer = buffer.subarray(end);
    }
    this.rest = buffer;
  }

  close() {
    this.socket.destroy();
  }
}

export class Client {
  static async connect(port) {
    const client = new Client();
    client.connection = await Connection.open(port, (...packet) => client.handle(...packet), () => {});
    return client;
  }

  submits = []; // answered in the order of the requests
  results = new Map(); // by handle
  progress = new Map(); // by handle
  calls = new Map(); // by id

  submit(name, payload = "", { unique = "", ...options } = {}) {
    this.connection.send(SUBMIT, name, unique, json(options), payload);
    return new Promise((resolve, reject) => this.submits.push({ resolve, reject }));
  }

  // Resolves to {state, attempt, error, data}; `onProgress(kind, ...values)` is called with progress until then.
  result(handle, onProgress) {
    const waiting = this.results.get(handle) ?? [];
    if (onProgress) this.progress.set(handle, onProgress);
    return new Promise((resolve) => {
      this.results.set(handle, [...waiting, resolve]);
      if (!waiting.length) this.connection.send(WAIT, handle);
    });
  }

  call(method, params = {}, event = undefined) {
    const id = String(Math.random());
    this.connection.send(CALL, id, method, json(params));
    return new Promise((resolve, reject) => this.calls.set(id, { resolve, reject, event }));
  }

  handle(type, args) {
    if (type === SUBMITTED) {
      this.submits.shift().resolve({ handle: args[0], joined: args[1].toString() === "1" });
    } else if (type === ERROR) {
      this.submits.shift().reject(new ServerError(args[0], args[1].toString()));
    } else if (type === RESULT) {
      const [handle, state, attempt, error, data] = args;
      const waiting = this.results.get(handle) ?? [];
      this.results.delete(handle);
      this.progress.delete(handle);
      const outcome = { state, attempt: Number(attempt), error: error ? JSON.parse(error) : null, data };
      for (const resolve of waiting) resolve(outcome);
    } else if (type === ANSWER) {
      this.calls.get(args[0]).resolve(JSON.parse(args[1]));
      if (!this.calls.get(args[0]).event) this.calls.delete(args[0]);
    } else if (type === FAULT) {
      this.calls.get(args[0]).reject(new ServerError(args[1], args[2].toString()));
      this.calls.delete(args[0]);
    } else if (type === EVENT) {
      this.calls.get(args[0]).event(JSON.parse(args[1]));
    } else {
      const kind = { [WORK_STATUS]: "status", [WORK_DATA]: "data", [WORK_WARNING]: "warning" }[type];
      this.progress.get(args[0])?.(kind, ...args.slice(1).map(String));
    }
  }

  close() {
    this.connection.close();
  }
}

// Thrown by a handler to end its delivery with another outcome: {outcome: "snoozed", detail: {delay: 5}}, or {detail: {final: true}}.
export class OtherOutcome extends Error {
  constructor(outcome, detail = {}) {
    super(outcome);
    this.outcome = outcome;
    this.detail = detail;
  }
}

export class Worker {
  // `handlers`: by function's name, async (payload, job) => result. `job` has handle, unique, info, signal, status().
  static async connect(port, handlers, { places = 1, options = {} } = {}) {
    const worker = Object.assign(new Worker(), { port, handlers, places, options });
    await worker.reconnect();
    return worker;
  }

  running = new Map(); // by token
  unanswered = new Map(); // by token: the packet of a settlement
  verdicts = [];

  async reconnect() {
    const handle = (...packet) => this.handle(...packet);
    this.connection = await Connection.open(this.port, handle, () => this.lost());
    if (this.ended) return this.connection.close(); // closed while connecting
    for (const settlement of this.unanswered.values()) this.connection.send(...settlement);
    for (const name of Object.keys(this.handlers)) this.connection.send(REGISTER, name, json(this.options));
    if (!this.paused) this.connection.send(READY, String(this.places - this.running.size));
  }

  lost() {
    for (const job of this.running.values()) job.controller.abort("lost");
    if (!this.ended) this.reconnect().catch(() => setTimeout(() => this.lost(), 100));
  }

  async run(handle, token, name, unique, info, payload) {
    const controller = new AbortController();
    const job = { handle, token, unique, info, controller, signal: controller.signal };
    job.status = (...progress) => this.connection.send(WORK_STATUS, handle, ...progress.map(String));
    this.running.set(token, job);
    const beat = () => this.connection.send(HEARTBEAT, JSON.stringify({ jobs: [[handle, token]] }));
    const timer = info.heartbeat ? setInterval(beat, (info.heartbeat * 1000) / 3) : undefined;
    let [outcome, detail, data] = ["succeeded", {}, ""];
    try {
      data = (await this.handlers[name](payload, job)) ?? "";
    } catch (error) {
      outcome = error instanceof OtherOutcome ? error.outcome : "failed";
      detail = error instanceof OtherOutcome ? error.detail : { error: { type: error.name, message: error.message } };
      if (controller.signal.aborted && controller.signal.reason === "cancelled") [outcome, detail] = ["cancelled", {}];
    }
    clearInterval(timer);
    this.unanswered.set(token, [SETTLE, handle, token, outcome, json(detail), data]);
    this.connection.send(...this.unanswered.get(token));
    this.running.delete(token);
    if (!this.paused) this.connection.send(READY, "1");
  }

  handle(type, args) {
    if (type === ASSIGN) {
      const [handle, token, name, unique, info, payload] = args;
      this.run(handle, token, name, unique, JSON.parse(info), payload);
    } else if (type === SETTLED) {
      this.verdicts.push(args[2].toString());
      this.unanswered.delete(args[1]);
    } else if (type === STOP) {
      this.running.get(args[1])?.controller.abort(args[2].toString());
    } else if (type === BEATEN) {
      const { stop, lost } = JSON.parse(args[0]);
      for (const [, token] of stop) this.running.get(token)?.controller.abort("cancelled");
      for (const [, token] of lost) this.running.get(token)?.controller.abort("lost");
    } else if (type === PAUSED) {
      this.paused.resolve();
    } else if (type === ERROR) {
      throw new ServerError(args[0], args[1].toString());
    }
  }

  // Accepts no more jobs; resolves when none can arrive any more.
  pause() {
    return new Promise((resolve) => {
      this.paused = { resolve };
      this.connection.send(PAUSE);
    });
  }

  resume() {
    this.paused = null;
    this.connection.send(READY, String(this.places - this.running.size));
  }

  close() {
    this.ended = true;
    this.connection.close();
  }
}
