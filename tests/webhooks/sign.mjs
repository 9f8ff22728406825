// Prints the signature of the reference library: sign.mjs <secret> <id> <unix seconds> <body>
import { Webhook } from "standardwebhooks";

const [secret, id, timestamp, body] = process.argv.slice(2);
console.log(new Webhook(secret).sign(id, new Date(timestamp * 1000), body));
