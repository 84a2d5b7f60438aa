#!/usr/bin/env node
'use strict';
// Uses everything that a device can do, for the tests in crates/cli/tests/sdk.rs.

const outboard = require('../outboard-module');

/** Returns its messages, but does what the words "absent", "present", "end" and "fail" say. */
class Conformance extends outboard.Device {
  format = 'motion';
  back = 'bytes';
  summary = 'conformance';
  flowClass = 'timely';

  start() {
    this.send('started', 1n);
  }

  message(body, created) {
    const word = body.toString();
    if (word === 'absent') this.absent('asked to');
    else if (word === 'present') this.present();
    else if (word === 'end') {
      this.send('last', 2n);
      this.end();
    } else if (word === 'fail') throw new outboard.ModuleError('asked to fail');
    else this.send(body, created);
  }

  neutral() {
    this.send('neutral', 3n);
  }

  snapshot() {
    this.send('snapshot', 4n);
  }
}

outboard.run(new Conformance());
