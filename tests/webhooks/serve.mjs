// Serves the receiver of docs/receivers/javascript. Settings: WEBHOOK_SECRETS, DOWNSTREAM_URL.
//
// POST /remember   adds each event to a list; the name `poison` cannot be applied
// POST /pass-on    forwards each event to DOWNSTREAM_URL, and stores nothing
// GET /taken       the ids in the list, in order
import { createServer } from "node:http";
import { EventFailed, readSecrets, receiver } from "../../docs/receivers/javascript/receiver.mjs";
import { passOn } from "../../docs/receivers/javascript/recipes.mjs";

const keys = readSecrets(process.env.WEBHOOK_SECRETS);
const taken = [];
const take = (event) => {
  if (event.after?.name === "poison") throw new EventFailed("this is poison");
  taken.push(event.id);
};
const forgetful = { has: () => false, add: () => {} };
const receivers = {
  "/remember": receiver({ keys, seen: new Set(), take }),
  "/pass-on": receiver({ keys, seen: forgetful, take: passOn(process.env.DOWNSTREAM_URL) }),
};

const server = createServer(async (request, response) => {
  if (request.method === "GET") return response.end(JSON.stringify(taken));
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const { status, body } = await receivers[request.url](new Headers(request.headers), Buffer.concat(chunks));
  response.writeHead(status).end(JSON.stringify(body));
});
server.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
process.stdin.on("end", () => process.exit()).resume();
