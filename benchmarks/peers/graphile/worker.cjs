// The measured messages as tasks of graphile-worker: counted, and nothing else.
// The counter is the file of benchmarks/work.py: one unsigned 64 bit number for each process.
"use strict";
const fs = require("node:fs");
const { run } = require("graphile-worker");

const SLOTS = 512;
let handled = 0;
const slot = Buffer.alloc(8);

function report(file) {
  slot.writeBigUInt64LE(BigInt(handled));
  fs.writeSync(file, slot, 0, 8, (process.pid % SLOTS) * 8);
}

async function main() {
  const file = fs.openSync(process.env.BENCH_COUNTER, "r+");
  setInterval(() => report(file), 2);
  const runner = await run({
    preset: {
      worker: {
        connectionString: process.env.BENCH_URL,
        concurrentJobs: 24,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    taskList: {
      nothing: async () => {
        handled += 1;
      },
      pickup: async (payload) => {
        const waited = process.hrtime.bigint() - BigInt(payload.sent);
        fs.appendFileSync(process.env.BENCH_OUTPUT, `${waited}\n`);
      },
    },
  });
  await runner.promise;
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
