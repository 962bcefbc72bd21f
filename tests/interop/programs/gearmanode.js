// The library gearmanode: see README.md. Its workers turn results into text.
'use strict';
const path = require('path');
const gearmanode = require(path.join(__dirname, '..', 'node', 'node_modules', 'gearmanode'));

const [port, role, ...rest] = process.argv.slice(2);
const address = { host: '127.0.0.1', port: Number(port) };
const say = (...words) => console.log(words.join(' '));
const hex = (data) => Buffer.from(data || '').toString('hex');

function runClient(mode, jobs) {
  const client = gearmanode.client(address);
  let left = jobs.length;
  const ended = () => { left -= 1; if (left === 0) client.close(); };
  jobs.forEach((text) => {
    const [name, data] = text.split('=');
    const job = client.submitJob(name, Buffer.from(data, 'hex'), { background: mode === 'background' });
    if (mode === 'background') {
      job.on('created', () => { say(name, 'created'); ended(); });
      return;
    }
    job.on('complete', () => { say(name, 'complete', hex(job.response)); ended(); });
    job.on('failed', () => { say(name, 'failed'); ended(); });
    job.on('exception', (text) => { say(name, 'exception', hex(text)); ended(); });
    job.on('workData', (part) => say(name, 'data', hex(part)));
    job.on('warning', (part) => say(name, 'warning', hex(part)));
    job.on('status', (status) => say(name, 'status', status.percent_done_num, status.percent_done_den));
  });
}

function runWorker(prefix) {
  const worker = gearmanode.worker(address);
  worker.addFunction(`${prefix}-upper`, (job) => job.workComplete(job.payload.toString().toUpperCase()));
  worker.addFunction(`${prefix}-fail`, (job) => job.reportError());
  worker.addFunction(`${prefix}-raise`, (job) => job.reportException('boom'));
  worker.addFunction(`${prefix}-progress`, (job) => {
    job.sendWorkData('part');
    job.reportWarning('careful');
    job.reportStatus(1, 2);
    job.workComplete('whole');
  });
}

if (role === 'worker') runWorker(rest[0]);
else runClient(rest[0], rest.slice(1));
