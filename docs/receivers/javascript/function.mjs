// The receiver as an Azure Function (programming model 4). Settings: WEBHOOK_SECRETS, with secrets
// separated by blanks, and DOWNSTREAM_URL.
import { app } from "@azure/functions";
import { receiver } from "./receiver.mjs";
import { passOn } from "./recipes.mjs";

const receive = receiver({
  secrets: process.env.WEBHOOK_SECRETS.split(" "),
  seen: new Set(), // saves calls while the process lives; the downstream key is what makes it safe
  take: passOn(process.env.DOWNSTREAM_URL),
});

app.http("changes", {
  methods: ["POST"],
  authLevel: "function",
  handler: async (request) => {
    const { status, body } = await receive(request.headers, Buffer.from(await request.arrayBuffer()));
    return { status, jsonBody: body };
  },
});
