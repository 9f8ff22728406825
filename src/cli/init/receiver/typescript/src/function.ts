// The receiver as an Azure Function (programming model 4). The signature authenticates requests, so no function key
// is needed.
import { app } from "@azure/functions";
import { Receiver } from "./core/receive.js";
import { handle } from "./handler.js";

// Here and not in the function, so that an app without its settings does not start.
const receiver = new Receiver(process.env.WEBHOOK_SECRETS, process.env.DATABASE ?? "", handle);

app.http("@@poller@@", {
  methods: ["POST"],
  authLevel: "anonymous",
  handler: async (request) => {
    const { status, body } = await receiver.receive(request.headers, Buffer.from(await request.arrayBuffer()));
    return { status, jsonBody: body };
  },
});
