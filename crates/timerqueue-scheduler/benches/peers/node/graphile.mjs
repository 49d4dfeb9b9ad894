// Driver of graphile-worker, on a server: as shipped.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { drive } from "./common.mjs";

const logger = new Logger(() => () => {});
const at = (due) => (due ? { runAt: new Date(due) } : {});

await drive(async (place) => {
  const utils = await makeWorkerUtils({ connectionString: place, maxPoolSize: 20, logger });
  await utils.migrate();
  return {
    put: (text, due) => utils.addJob("h", { text }, at(due)),
    putMany: (texts, due) => utils.addJobs(texts.map((text) => ({ identifier: "h", payload: { text }, ...at(due) }))),
    work: (places, handle) =>
      run({
        connectionString: place,
        concurrency: places,
        maxPoolSize: places + 4,
        logger,
        noHandleSignals: true,
        taskList: { h: (payload) => handle(payload.text) },
      }),
  };
});
