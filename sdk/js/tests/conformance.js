#!/usr/bin/env node
'use strict';
// Uses every frame that a module can send, for the tests in crates/cli/tests/sdk.rs.

const outboard = require('../outboard-module');

/** Keeps back messages that begin with "keep" until a flush; drops "drop"; fails at "fail". */
class Conformance extends outboard.Module {
  kept = [];

  start() {
    if ('greeting' in this.options) this.sendToPeer(`${this.role} ${this.format} ${this.options.greeting}`);
  }

  message(body, created) {
    const text = body.toString('latin1', 0, 8);
    if (text === 'drop') throw new outboard.Drop('asked to');
    if (text === 'fail') throw new outboard.ModuleError('asked to fail');
    if (text === 'twice') return [body, { body, created: created + 1n }];
    if (!text.startsWith('keep')) return body;
    this.kept.push({ body, created });
  }

  peer(control) {
    this.sendToPeer(`got ${control}`);
    return { body: `peer ${control}`, created: 7 };
  }

  gap() {
    return { body: 'gap', created: 8 };
  }

  flush() {
    return this.kept.splice(0);
  }

  held() {
    return this.kept.length > 0;
  }
}

outboard.run(new Conformance());
