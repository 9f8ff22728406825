// Runs Azurite until its standard input ends, so that it never outlives the tests that started it.
"use strict";

process.stdin.resume().on("end", () => process.exit(0));
require("azurite/dist/src/blob/main.js");
