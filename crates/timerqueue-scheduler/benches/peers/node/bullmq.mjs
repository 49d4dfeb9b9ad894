// Driver of BullMQ, on Redis: for lateness and rest.
import { Queue, Worker } from "bullmq";
import { drive } from "./common.mjs";

const delay = (due) => (due ? { delay: Math.max(0, due - Date.now()) } : {});

await drive(async (place) => {
  const [port, db] = place.split("/").map(Number);
  const connection = { host: "127.0.0.1", port, db, maxRetriesPerRequest: null };
  const queue = new Queue("h", { connection });
  return {
    put: (text, due) => queue.add("h", { text }, delay(due)),
    putMany: (texts, due) => queue.addBulk(texts.map((text) => ({ name: "h", data: { text }, opts: delay(due) }))),
    work: async (places, handle) => new Worker("h", async (job) => handle(job.data.text), { connection, concurrency: places }).waitUntilReady(),
  };
});
