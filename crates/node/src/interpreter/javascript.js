// The driver of a javascript context: see python.py for how it talks.
'use strict';
const repl = require('repl');
const fs = require('fs');
const util = require('util');
const { PassThrough } = require('stream');

const RS = '\x1e';
let token = '', count = 0, busy = false;
const write = (fd, text) => {
  let data = Buffer.from(text);
  while (data.length) {
    try { data = data.subarray(fs.writeSync(fd, data)); } catch (error) { if (error.code !== 'EAGAIN') throw error; }
  }
};
const frame = (fields) => write(1, RS + token + JSON.stringify(fields) + RS);
// What a cell prints is written at once, so that it comes before the frame that ends the cell.
for (const [stream, fd] of [[process.stdout, 1], [process.stderr, 2]]) {
  stream.write = (data, encoding, done) => {
    write(fd, typeof data === 'string' ? data : Buffer.from(data));
    const callback = typeof encoding === 'function' ? encoding : done;
    if (callback) process.nextTick(callback);
    return true;
  };
}
const server = repl.start({ prompt: '', input: new PassThrough(), output: new PassThrough(), terminal: false,
  useGlobal: false, breakEvalOnSigint: true, ignoreUndefined: true });
server.context.require = require;
server.context.display = (...values) => values.forEach((value) => frame({ k: 'result', main: false, data: bundle(value) }));
process.on('SIGINT', () => {});
process.on('uncaughtException', (error) => { write(2, `${error && error.stack || error}\n`); });
process.on('unhandledRejection', (error) => { write(2, `${error && error.stack || error}\n`); });

const bundle = (value) => {
  const data = { 'text/plain': util.inspect(value, { depth: 4, maxArrayLength: 200 }) };
  try { if (value !== null && typeof value === 'object') { const text = JSON.stringify(value); if (text !== undefined) data['application/json'] = JSON.parse(text); } } catch { /* cycles have no JSON */ }
  return data;
};
// A cell may say again what an earlier one said, so declarations at its left edge are such as can be said twice.
const plain = (code) => code.replace(/^(const|let)(?=[\s{[])/gm, 'var');
const again = (code) => code.replace(/^class\s+([A-Za-z_$][\w$]*)/gm, '$1 = class $1');
const once = (code) => new Promise((resolve, reject) => {
  const fail = (error) => reject(error instanceof repl.Recoverable ? error.err : error);
  // What fails behind an await is told to the server's domain and to nobody else.
  if (server._domain) { server._domain.removeAllListeners('error'); server._domain.on('error', fail); }
  server.eval(code + '\n', server.context, `<cell ${count}>`, (error, value) => (error ? fail(error) : resolve(value)));
});
const evaluate = (code) => once(plain(code)).catch((error) => {
  if (error && error.name === 'SyntaxError' && / has already been declared/.test(error.message)) return once(again(plain(code)));
  throw error;
});
const run = async (code) => {
  let status = 'ok';
  busy = true;
  try {
    const value = await evaluate(code);
    if (value !== undefined) frame({ k: 'result', main: true, data: bundle(value) });
  } catch (error) {
    const stopped = error && error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
    status = stopped ? 'interrupted' : 'error';
    const known = error !== null && typeof error === 'object';
    frame({ k: 'error', name: known && error.name || 'Error', value: String(known && 'message' in error ? error.message : error),
      traceback: String(known && error.stack || error).split('\n').filter((line) => !/node:|\[eval\]/.test(line)) });
  }
  busy = false;
  frame({ k: 'done', status, count });
  write(2, RS + token + RS);
};
let pending = '', queue = Promise.resolve();
process.stdin.setEncoding('latin1');
process.stdin.on('data', (text) => {
  pending += text;
  const lines = pending.split('\n');
  pending = lines.pop();
  for (const line of lines) {
    const [verb, of, code] = line.split(' ');
    if (verb !== 'run') continue;
    queue = queue.then(() => { token = of; count += 1; return run(Buffer.from(code || '', 'base64').toString()); });
  }
});
process.stdin.on('end', () => process.exit(0));
