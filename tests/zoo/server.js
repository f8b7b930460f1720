// The zoo's node server: a counter in the main thread, a ticking worker thread, and a question to it on every request.
'use strict';
const http = require('node:http');
const { Worker, isMainThread, parentPort } = require('node:worker_threads');

const PORT = 8103;
const TICK_MS = 20;

if (isMainThread) {
  const state = { counter: 0, ticks: 0, notes: new Set() };
  const waiting = new Map();
  let question = 0;
  const worker = new Worker(__filename);
  worker.on('message', ({ id, ticks }) => {
    waiting.get(id)(ticks);
    waiting.delete(id);
  });
  worker.on('error', (error) => { throw error; });
  const askWorker = () => new Promise((resolve) => {
    question += 1;
    waiting.set(question, resolve);
    worker.postMessage(question);
  });
  setInterval(() => { state.ticks += 1; }, TICK_MS);
  http.createServer(async (request, response) => {
    let body = '';
    for await (const part of request) body += part;
    if (request.method === 'POST') {
      const { amount, note } = JSON.parse(body);
      state.counter += amount;
      state.notes.add(note);
    }
    const answer = { counter: state.counter, ticks: state.ticks, worker: await askWorker(), notes: [...state.notes].sort(), pid: process.pid };
    response.end(JSON.stringify(answer));
  }).listen(PORT, '127.0.0.1');
} else {
  let ticks = 0;
  setInterval(() => { ticks += 1; }, TICK_MS);
  parentPort.on('message', (id) => parentPort.postMessage({ id, ticks }));
}
