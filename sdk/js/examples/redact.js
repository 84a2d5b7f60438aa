#!/usr/bin/env node
'use strict';
// Blackens e-mail addresses in lines of text: exec(source="./redact.js")

const outboard = require('../outboard-module');

const ADDRESS = /[\w.+-]+@[\w-]+(\.[\w-]+)+/g;

outboard.run((body) => {
  const text = body.toString();
  if (text.includes('\0')) throw new outboard.Drop('no text: it holds a zero byte');
  return text.replace(ADDRESS, (address) => '*'.repeat(address.length));
});
