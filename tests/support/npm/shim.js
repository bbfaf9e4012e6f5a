// Loaded before Azurite (node -r shim.js): its clock is in the hands of the test, and it never
// outlives the test. A blob lease lasts 15 seconds at least, and no test should wait for that.
//
// Lines on stdin: "clock MILLISECONDS" stops the clock at that moment since 1970, "clock" lets it
// go again. Each is answered by a line on the file descriptor LEASEHOLD_ANSWERS. The end of stdin
// is the end of the process. Timers stay real: only what says the date is replaced.
"use strict";
const fs = require("fs");
const http = require("http");
const readline = require("readline");

const RealDate = Date;
let stopped = null;

class HandDate extends RealDate {
  constructor(...given) {
    if (given.length === 0) {
      super(HandDate.now());
    } else {
      super(...given);
    }
  }

  static now() {
    return stopped === null ? RealDate.now() : stopped;
  }
}

const answers = Number(process.env.LEASEHOLD_ANSWERS || 0);
if (answers) {
  globalThis.Date = HandDate;
  // Node writes a Date of its own into answers that have none: those of refusals.
  const writeHead = http.ServerResponse.prototype.writeHead;
  http.ServerResponse.prototype.writeHead = function (...given) {
    if (!this.headersSent && !this.hasHeader("date")) {
      this.setHeader("Date", new HandDate().toUTCString());
    }
    return writeHead.apply(this, given);
  };
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const [word, moment] = line.trim().split(/\s+/);
  if (word === "clock") {
    stopped = moment === undefined ? null : Number(moment);
    fs.writeSync(answers, "ok\n");
  }
});
lines.on("close", () => process.exit(0));
