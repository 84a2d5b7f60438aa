#!/usr/bin/env node
'use strict';
// A transport over one TCP connection: --transport 'exec:./carrier.js HOST PORT' on both hosts. The device host listens at PORT,
// and the application host connects to HOST; each device in use has the port of its number behind PORT.

const net = require('net');
const outboard = require('../outboard-module.js');

class Carrier extends outboard.Transport {
  reliable = true;
  ordered = true;

  start() {
    const [host, port] = [process.argv[2], Number(process.argv[3]) + this.driver];
    return new Promise((resolve) => {
      const meet = (stream) => resolve(this.meet(stream));
      if (this.end === 'dialled') this.dial(port, host, meet);
      else net.createServer().once('connection', meet).listen(port);
    });
  }

  /** The other program may start later than this one. */
  dial(port, host, meet) {
    const stream = net.connect(port, host, () => meet(stream.removeAllListeners('error')));
    stream.once('error', () => setTimeout(() => this.dial(port, host, meet), 50));
  }

  meet(stream) {
    this.stream = stream.setNoDelay();
    stream.on('close', () => process.exit(1)).on('error', (error) => console.error(`carrier: ${error.message}`));
    let held = Buffer.alloc(0);
    stream.on('data', (piece) => {
      held = Buffer.concat([held, piece]);
      let room;
      for (; held.length >= 4 && held.length >= 4 + held.readUInt32LE(0); held = held.subarray(4 + held.readUInt32LE(0))) {
        room = this.send(held.subarray(4, 4 + held.readUInt32LE(0)));
      }
      if (!room) return;
      stream.pause();
      room.then(() => stream.resume());
    });
  }

  message(body) {
    const header = Buffer.alloc(4);
    header.writeUInt32LE(body.length);
    if (!this.stream.write(Buffer.concat([header, body]))) return new Promise((resolve) => this.stream.once('drain', resolve));
  }
}

outboard.run(new Carrier());
