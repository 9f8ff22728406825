// Receives batches with third-party libraries: `standardwebhooks` and `cloudevents`.
//
// POST /webhook       the signature must be valid for WEBHOOK_SECRET
// POST /cloudevents   the body must be a batch of valid CloudEvents
// GET /last           the last accepted batch, as JSON
import { createServer } from "node:http";
import { gunzipSync } from "node:zlib";
import { HTTP, ValidationError } from "cloudevents";
import { Webhook } from "standardwebhooks";

let last = null;

const paths = {
  "/webhook": (headers, body) => new Webhook(process.env.WEBHOOK_SECRET).verify(body, headers),
  "/cloudevents": (headers, body) => {
    const events = HTTP.toEvent({ headers, body });
    if (!Array.isArray(events)) throw new ValidationError("this is no batch");
    for (const event of events) event.validate();
    return events;
  },
};

const server = createServer(async (request, response) => {
  if (request.method === "GET") return response.end(JSON.stringify(last));
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const raw = Buffer.concat(chunks);
  const body = request.headers["content-encoding"] === "gzip" ? gunzipSync(raw) : raw;
  try {
    last = paths[request.url](request.headers, body.toString("utf8"));
    response.writeHead(204).end();
  } catch (error) {
    response.writeHead(401).end(String(error));
  }
});
server.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
process.stdin.on("end", () => process.exit()).resume();
