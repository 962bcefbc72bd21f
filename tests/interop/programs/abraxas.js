// The library abraxas: see README.md.
'use strict';
const path = require('path');
const { Client } = require(path.join(__dirname, '..', 'node', 'node_modules', 'abraxas'));

const [port, role, ...rest] = process.argv.slice(2);
const say = (...words) => console.log(words.join(' '));
const hex = (data) => Buffer.from(data || '').toString('hex');
const client = Client.connect({ host: '127.0.0.1', port: Number(port) });

function runJob(mode, text) {
  const [name, data] = text.split('=');
  const payload = Buffer.from(data, 'hex');
  return new Promise((resolve) => {
    if (mode === 'background') {
      client.submitJobBg(name, {}, payload, (error) => { say(name, error ? 'failed' : 'created'); resolve(); });
      return;
    }
    const task = client.submitJob(name, {}, payload);
    const parts = [];
    task.on('warn', (part) => say(name, 'warning', hex(part)));
    task.on('status', (part) => say(name, 'status', part)); // a share of 1
    task.on('data', (part) => parts.push(Buffer.from(part)));
    task.on('error', (error) => {
      const reason = String(error.message);
      if (/^Job H:\S+ failed$/.test(reason)) say(name, 'failed');
      else say(name, 'exception', hex(reason));
      resolve();
    });
    task.on('end', () => { say(name, 'complete', hex(Buffer.concat(parts))); resolve(); });
  });
}

function runWorker(prefix) {
  client.registerWorker(`${prefix}-upper`, (task) => Buffer.from(task.payload || '').map(
    (byte) => (byte >= 97 && byte <= 122 ? byte - 32 : byte),
  ));
  client.registerWorker(`${prefix}-raise`, () => { throw new Error('boom'); });
}

if (role === 'worker') runWorker(rest[0]);
else Promise.all(rest.slice(1).map((text) => runJob(rest[0], text))).then(() => client.disconnect());
