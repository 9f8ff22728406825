// Runs one service of Azurite, the first argument, until standard input ends, so that it never outlives the
// tests that started it.
"use strict";

process.stdin.resume().on("end", () => process.exit(0));
// Must not keep the process alive: SIGTERM lets Azurite save its data, and then nothing keeps it running.
process.stdin.unref();

// Azurite responds before it listens to SIGTERM, which would then end it without saving its data.
let asked = false;
const early = () => { asked = true; };
process.on("SIGTERM", early);
const ready = setInterval(() => {
  if (process.listenerCount("SIGTERM") < 2) return;
  clearInterval(ready);
  process.off("SIGTERM", early);
  if (asked) process.emit("SIGTERM");
}, 10);

const [service] = process.argv.splice(2, 1);
require(`azurite/dist/src/${service}/main.js`);
