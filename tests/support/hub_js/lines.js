// A child that is told what to do by lines of JSON, and tells by lines of JSON what it sees.
"use strict";

const { createInterface } = require("node:readline");

function tell(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

// What a client says about an error: its code if it has one.
function nameOf(error) {
  return { error: error.code ?? error.name, message: error.message };
}

// Does what each line asks for. The end of the lines is the end of the process.
function obey(works) {
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const { work, ...how } = JSON.parse(line);
    works[work](how).catch((error) => {
      console.error(error);
      process.exit(1);
    });
  });
  lines.on("close", () => process.exit(0));
  tell({ ready: true });
}

module.exports = { nameOf, obey, tell };
