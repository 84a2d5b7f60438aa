#!/usr/bin/env node
'use strict';
// A program that stands in for a 3D mouse (docs/reference/formats-motion.md) and prints how far its cap is pushed:
// outboard attach HOST/cap --as exec:./meter.js,frame=declared

const outboard = require('../outboard-module');

const [MOTION, SNAPSHOT] = [0, 2];

class Meter extends outboard.Application {
  format = 'motion';
  summary = 'a meter of a 3D mouse';

  start() {
    this.show(`for ${this.device.summary}`);
  }

  message(body) {
    if (body[0] !== MOTION && body[0] !== SNAPSHOT) return;
    const axes = Array.from({ length: 6 }, (_, axis) => body.readInt32LE(1 + 4 * axis));
    this.show(`pushed ${Math.round(Math.hypot(...axes))}`);
  }

  neutral() {
    this.show('at rest');
  }

  show(line) {
    console.error(line);
  }
}

outboard.run(new Meter());
