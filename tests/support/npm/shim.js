// Loaded before Azurite (node -r shim.js): it has clocks that tests set, and never outlives them.
// A blob lease lasts 15 seconds at least, and no test should wait for that.
//
// Each clock is that of the containers whose names begin with its own name and a hyphen. A request
// for /:clock/NAME/MILLISECONDS stops it at that moment since 1970, one without the milliseconds
// lets it go again. All other containers have the time of the machine. A request with a header
// x-test-now is handled as if it came at that moment. Timers stay real: only what says the date is
// replaced.
//
// The end of stdin, which is a pipe that those who use the service hold, is the end of the process.
"use strict";
const { AsyncLocalStorage } = require("async_hooks");
const http = require("http");
const https = require("https");

const RealDate = Date;
const clocks = new Map();
const asking = new AsyncLocalStorage();

class HandDate extends RealDate {
  constructor(...given) {
    if (given.length === 0) {
      super(HandDate.now());
    } else {
      super(...given);
    }
  }

  static now() {
    const { name, now } = asking.getStore() ?? {};
    return now ?? clocks.get(name) ?? RealDate.now();
  }
}
globalThis.Date = HandDate;

const timeOf = ({ url, headers }) => ({
  name: url.split(/[/?]/, 3)[2]?.split("-", 1)[0],
  now: headers["x-test-now"] && Number(headers["x-test-now"]),
});

const set = (request, response) => {
  const [, , name, moment] = request.url.split("/");
  if (moment === undefined) {
    clocks.delete(name);
  } else {
    clocks.set(name, Number(moment));
  }
  response.end("ok");
};

for (const { prototype } of [http.Server, https.Server]) {
  const emit = prototype.emit;
  prototype.emit = function (event, ...given) {
    if (event !== "request") {
      return emit.call(this, event, ...given);
    }
    if (given[0].url.startsWith("/:clock/")) {
      return set(...given);
    }
    return asking.run(timeOf(given[0]), () => emit.call(this, event, ...given));
  };
}

// Node writes a Date of its own into answers that have none: those of refusals.
const writeHead = http.ServerResponse.prototype.writeHead;
http.ServerResponse.prototype.writeHead = function (...given) {
  if (!this.headersSent && !this.hasHeader("date")) {
    const date = asking.run(timeOf(this.req), () => new HandDate());
    this.setHeader("Date", date.toUTCString());
  }
  return writeHead.apply(this, given);
};

process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
