// The receiver as an Azure Function (programming model 4). Settings: WEBHOOK_SECRETS, with secrets
// separated by blanks, and DOWNSTREAM_URL.
import { app } from "@azure/functions";
import { readSecrets, receiver } from "./receiver.mjs";
import { passOn } from "./recipes.mjs";

// Here and not in the function, so that an app without its settings does not start.
const downstream = new URL(process.env.DOWNSTREAM_URL).href;
const receive = receiver({
  keys: readSecrets(process.env.WEBHOOK_SECRETS),
  seen: new Set(), // saves calls while the process lives; the downstream key is what makes it safe
  take: passOn(downstream),
});

app.http("changes", {
  methods: ["POST"],
  authLevel: "function",
  handler: async (request) => {
    const { status, body } = await receive(request.headers, Buffer.from(await request.arrayBuffer()));
    return { status, jsonBody: body };
  },
});
