// Runs one service of Azurite, the first argument, until standard input ends, so that it never
// outlives the tests that started it.
"use strict";

process.stdin.resume().on("end", () => process.exit(0));
// Not a reason to stay: SIGTERM lets Azurite write down what it has, and then nothing holds it.
process.stdin.unref();
const [service] = process.argv.splice(2, 1);
require(`azurite/dist/src/${service}/main.js`);
