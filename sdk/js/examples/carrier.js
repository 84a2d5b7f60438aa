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
    if (this.end === 'dialled') this.meet(net.connect(port, host));
    else net.createServer().once('connection', (stream) => this.meet(stream)).listen(port);
  }

  meet(stream) {
    this.stream = stream.setNoDelay();
    stream.on('close', () => process.exit(1)).on('error', (error) => console.error(`carrier: ${error.message}`));
    let held = Buffer.alloc(0);
    stream.on('data', (piece) => {
      held = Buffer.concat([held, piece]);
      for (; held.length >= 4 && held.length >= 4 + held.readUInt32LE(0); held = held.subarray(4 + held.readUInt32LE(0))) {
        this.send(held.subarray(4, 4 + held.readUInt32LE(0)));
      }
    });
  }

  message(body) {
    const header = Buffer.alloc(4);
    header.writeUInt32LE(body.length);
    this.stream.write(Buffer.concat([header, body]));
  }
}

outboard.run(new Carrier());
