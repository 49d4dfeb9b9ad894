// Driver of pg-boss, on a server: as shipped, but with the shortest poll that it takes.
import { PgBoss } from "pg-boss";
import { drive } from "./common.mjs";

const after = (due) => (due ? { startAfter: new Date(due) } : {});

await drive(async (place) => {
  const boss = new PgBoss({ connectionString: place, max: 20 });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue("h");
  return {
    put: (text, due) => boss.send("h", { text }, after(due)),
    putMany: (texts, due) => boss.insert("h", texts.map((text) => ({ data: { text }, ...after(due) }))),
    work: (places, handle) =>
      boss.work("h", { pollingIntervalSeconds: 0.5, batchSize: places, burstWhenBatchFull: places > 1, perJobResults: false }, async (jobs) =>
        jobs.forEach((job) => handle(job.data.text)),
      ),
  };
});
