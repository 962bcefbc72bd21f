// A client and worker of Mainspring's protocol extension, without any package, written from docs/reference/protocol.md.
//
//   const { connect } = require('./mainspring');
//   const server = await connect({ host: '127.0.0.1', port: 4730 });
//   const { handle } = await server.submit('add', JSON.stringify([1, 2]), { retry: { max_attempts: 3 } });
//   console.log((await server.result(handle)).data.toString());
'use strict';
const net = require('net');
const tls = require('tls');

const OPTION_REQ = 26, OPTION_RES = 27, ERROR = 19;
const SUBMIT = 1000, SUBMITTED = 1001, WAIT = 1002, RESULT = 1003, CALL = 1004, ANSWER = 1005, FAULT = 1006, EVENT = 1007;
const REGISTER = 1010, READY = 1011, ASSIGN = 1012, SETTLE = 1013, SETTLED = 1014, HEARTBEAT = 1015, STOP = 1017, PAUSE = 1018;
const WORK_STATUS = 12;

// How many arguments a packet from the server has; the last one runs to the end of its body.
const ARGUMENTS = { 6: 0, 12: 3, 19: 2, 27: 1, 28: 2, 29: 2, 1001: 2, 1003: 5, 1005: 2, 1006: 3, 1007: 2, 1012: 6, 1014: 3, 1016: 1, 1017: 3, 1019: 0 };

function packet(type, ...args) {
  const parts = args.map((arg) => (Buffer.isBuffer(arg) ? arg : Buffer.from(String(arg))));
  const body = Buffer.concat(parts.flatMap((part, number) => (number ? [Buffer.from([0]), part] : [part])));
  const head = Buffer.alloc(12);
  head.write('\0REQ', 'latin1');
  head.writeUInt32BE(type, 4);
  head.writeUInt32BE(body.length, 8);
  return Buffer.concat([head, body]);
}

function split(body, count) {
  const args = [];
  for (let start = 0; args.length < count; ) {
    const end = args.length === count - 1 ? body.length : body.indexOf(0, start);
    args.push(body.subarray(start, end));
    start = end + 1;
  }
  return args;
}

class Server {
  constructor(socket) {
    this.socket = socket;
    this.buffer = Buffer.alloc(0);
    this.submits = []; // answers come in the order of the requests
    this.waits = new Map(); // handle: the callers that wait for its result
    this.calls = new Map(); // id: the caller
    this.functions = new Map(); // name: its implementation
    this.running = new Map(); // handle and token: the job, which a STOP marks
    this.settling = new Map(); // handle and token: called when the settlement is on disk
    this.nextCall = 1;
    socket.on('data', (data) => this.receive(data));
    socket.on('close', () => this.lost(new Error('the connection to the server ended')));
    socket.on('error', () => {}); // close follows
    // The only timer that a worker needs: the server treats a job as lost if its required heartbeats do not arrive.
    this.beat = setInterval(() => this.heartbeat(), 1000);
    this.beat.unref();
  }

  negotiate() {
    return new Promise((resolve, reject) => {
      this.negotiated = { resolve, reject };
      this.send(OPTION_REQ, 'mainspring/2');
    });
  }

  send(type, ...args) { this.socket.write(packet(type, ...args)); }

  // ---- as a client ----

  /** Resolves when the job is on disk: { handle, joined }. `joined` tells whether it joined an existing job. */
  submit(name, payload, { unique = '', ...options } = {}) {
    return new Promise((resolve, reject) => {
      this.submits.push({ resolve, reject });
      this.send(SUBMIT, name, unique, JSON.stringify(options), payload);
    });
  }

  /** Resolves when the job has ended: { state, attempt, error, data }. `progress` is called with (done, total) before that. */
  result(handle, progress = () => {}) {
    return new Promise((resolve, reject) => {
      if (!this.waits.has(handle)) {
        this.waits.set(handle, []);
        this.send(WAIT, handle);
      }
      this.waits.get(handle).push({ resolve, reject, progress });
    });
  }

  /** Calls a method, such as call('jobs.cancel', { handle }). `event` is called with later events of the method. */
  call(method, params = {}, event = null) {
    return new Promise((resolve, reject) => {
      const id = String(this.nextCall++);
      this.calls.set(id, { resolve, reject, event });
      this.send(CALL, id, method, JSON.stringify(params));
    });
  }

  // ---- as a worker ----

  /** Runs jobs of a function: run(payload, job) returns the result or a promise of it; an exception fails the job. */
  register(name, run, options = {}) {
    this.functions.set(name, run);
    this.send(REGISTER, name, JSON.stringify(options));
  }

  /** Accepts a number of further jobs. */
  work(places) { this.send(READY, places); }

  async run(handle, token, name, unique, info, payload) {
    const key = `${handle} ${token}`;
    const job = {
      handle, unique, ...info, stopped: null,
      progress: (done, total) => this.send(WORK_STATUS, handle, done, total),
    };
    this.running.set(key, job);
    let outcome = 'succeeded', detail = '', data = '';
    try {
      data = (await this.functions.get(name)(payload, job)) ?? '';
      if (job.stopped === 'cancelled') [outcome, data] = ['cancelled', ''];
    } catch (error) {
      outcome = job.stopped === 'cancelled' ? 'cancelled' : 'failed';
      detail = JSON.stringify({ error: { type: error.name, message: error.message, traceback: error.stack } });
    }
    this.running.delete(key);
    if (job.stopped !== 'lost' && job.stopped !== 'timeout') {
      await new Promise((resolve) => { // a complete worker resends this on a new connection until it is answered
        this.settling.set(key, resolve);
        this.send(SETTLE, handle, token, outcome, detail, data);
      });
    }
    this.send(READY, 1);
  }

  heartbeat() {
    if (this.running.size) this.send(HEARTBEAT, JSON.stringify({ jobs: [...this.running.keys()].map((key) => key.split(' ')) }));
  }

  /** Accepts no more jobs; resolves when the running ones are settled. */
  async stop() {
    this.send(PAUSE);
    while (this.running.size || this.settling.size) await new Promise((resolve) => setTimeout(resolve, 10));
  }

  close() {
    clearInterval(this.beat);
    this.socket.end();
  }

  // ---- received packets ----

  receive(data) {
    this.buffer = Buffer.concat([this.buffer, data]);
    while (this.buffer.length >= 12) {
      const end = 12 + this.buffer.readUInt32BE(8);
      if (this.buffer.length < end) return;
      const type = this.buffer.readUInt32BE(4);
      const body = this.buffer.subarray(12, end);
      this.buffer = this.buffer.subarray(end);
      this.handle(type, split(body, ARGUMENTS[type] ?? 0));
    }
  }

  handle(type, args) {
    const text = (number) => args[number].toString();
    if (type === OPTION_RES) this.negotiated.resolve(this);
    else if (type === SUBMITTED) this.submits.shift().resolve({ handle: text(0), joined: text(1) === '1' });
    else if (type === ERROR) (this.submits.shift() ?? this.negotiated).reject(new Error(`${text(0)}: ${text(1)}`));
    else if (type === RESULT) {
      const outcome = { state: text(1), attempt: Number(text(2)), error: text(3) ? JSON.parse(text(3)) : null, data: args[4] };
      for (const { resolve } of this.waits.get(text(0)) ?? []) resolve(outcome);
      this.waits.delete(text(0));
    } else if (type === WORK_STATUS) {
      for (const { progress } of this.waits.get(text(0)) ?? []) progress(Number(text(1)), Number(text(2)));
    } else if (type === ANSWER) {
      const call = this.calls.get(text(0));
      if (!call.event) this.calls.delete(text(0));
      call.resolve(JSON.parse(text(1)));
    } else if (type === EVENT) this.calls.get(text(0)).event(JSON.parse(text(1)));
    else if (type === FAULT) {
      this.calls.get(text(0)).reject(Object.assign(new Error(text(2)), { code: text(1) }));
      this.calls.delete(text(0));
    } else if (type === ASSIGN) this.run(text(0), text(1), text(2), text(3), JSON.parse(text(4)), args[5]);
    else if (type === SETTLED) {
      const key = `${text(0)} ${text(1)}`;
      this.settling.get(key)?.(text(2));
      this.settling.delete(key);
    } else if (type === STOP) {
      const job = this.running.get(`${text(0)} ${text(1)}`);
      if (job) job.stopped = text(2);
    }
  }

  lost(error) {
    clearInterval(this.beat);
    const waits = [...this.waits.values()].flat();
    for (const { reject } of [...this.submits, ...waits, ...this.calls.values()]) reject(error);
    this.negotiated.reject(error);
    [this.submits, this.waits, this.calls] = [[], new Map(), new Map()];
  }
}

/** Connects and negotiates the extension. Options are those of net.connect, or of tls.connect with `tls: true`. */
function connect(options) {
  return new Server((options.tls ? tls : net).connect(options)).negotiate();
}

module.exports = { connect };
