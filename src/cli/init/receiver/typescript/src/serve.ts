// Serves the receiver on this machine. Settings come from local.settings.json; the environment takes precedence.
//
// In Azure, function.ts takes its place.
import { readFileSync } from "node:fs";
import { type IncomingMessage, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { BODY_BYTES_MAX, Receiver, type Reply } from "./core/receive.js";
import { handle } from "./handler.js";

const PATH = "/api/@@poller@@";
const PORT = @@port@@;

const local = JSON.parse(readFileSync("local.settings.json", "utf8")) as { Values: Record<string, string> };
const settings = { ...local.Values, ...process.env };
const receiver = new Receiver(settings.WEBHOOK_SECRETS, settings.DATABASE ?? "", handle);

async function reply(request: IncomingMessage): Promise<Reply> {
  if (request.method !== "POST" || request.url?.split("?")[0] !== PATH) {
    return { status: 404, body: { error: `expected a POST to ${PATH}` } };
  }
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length;
    // One byte above the limit is enough to be rejected.
    if (length <= BODY_BYTES_MAX + chunk.length) chunks.push(chunk);
  }
  const headers = { get: (name: string) => request.headers[name]?.toString() ?? null };
  return receiver.receive(headers, Buffer.concat(chunks));
}

const server = createServer(async (request, response) => {
  // A request that cannot be read, such as an aborted one, must not end the process.
  const { status, body } = await reply(request).catch((error: unknown) => {
    console.error("request failed:", error);
    return { status: 400, body: { error: "the request cannot be read" } };
  });
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
});
server.listen(Number(settings.PORT ?? PORT), "127.0.0.1", () => {
  const { port } = server.address() as AddressInfo;
  console.log(`receiver: http://127.0.0.1:${port}${PATH}`);
});
